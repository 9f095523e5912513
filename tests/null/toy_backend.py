"""A backend of a few lines that shows the whole flow without a framework: rules, shape class, build, run, decline."""

from dataclasses import dataclass, field, replace

from flexsdpa.eligibility.rule import Rule
from flexsdpa.plans.plan import PlanDeclined
from flexsdpa.spec.device import CPU
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import TensorSpec


@dataclass
class ToyPlan:
    """Says who it is and what it was given; declines values that are refused at run time."""

    backend: str
    spec: object
    refuses: object = None
    lasting: bool = False
    asked: list = field(default_factory=list)

    def run(self, *tensors):
        self.asked.append(tensors)
        if self.refuses in tensors:
            raise PlanDeclined(f"{self.backend}.value", "value", str(self.refuses), "any other value", self.lasting)
        return self.backend, tensors


@dataclass
class ToyBackend:
    """Serves what its rules let through. ``declines``: a tensor for which its plans decline."""

    name: str = "toy"
    rules: tuple = ()
    universal: bool = False
    declines: object = None
    lasting: bool = False
    fails: BaseException | None = None
    built: list = field(default_factory=list)
    plans: list = field(default_factory=list)

    def versions(self):
        return ((self.name, "1.0"),)

    def shape_class(self, request):
        return (request.q.shape[3],)

    def build(self, spec):
        if self.fails is not None:
            raise self.fails
        self.built.append(spec)
        self.plans.append(ToyPlan(self.name, spec, self.declines, self.lasting))
        return self.plans[-1]


def only_devices(*kinds, name="toy"):
    """A rule that refuses all devices but these."""
    refuses = lambda request: None if request.device.kind in kinds else str(request.device)
    return Rule(f"{name}.device", "device", refuses, " or ".join(kinds), "move the tensors", "a test")


def up_to_head_dim(limit, name="toy"):
    refuses = lambda request: str(request.q.shape[3]) if request.q.shape[3] > limit else None
    return Rule(f"{name}.head-dim", "head_dim", refuses, f"up to {limit}", "split heads", "a test")


PLAIN = AttentionRequest(
    direction="forward",
    device=CPU,
    q=TensorSpec("f32", (2, 4, 16, 64)),
    k=TensorSpec("f32", (2, 2, 24, 64)),
    v=TensorSpec("f32", (2, 2, 24, 32)),
    program="flexsdpa-ir 1\nscalars 0\nscore\nreturn score 0",
)


def request(**changes):
    """PLAIN with some fields changed."""
    return replace(PLAIN, **changes)
