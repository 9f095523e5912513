"""PlanKey: every field counts, in equality and in the digest; values of scalars and names of functions are not in it."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from flexsdpa.plans.key import PlanKey, plan_key
from flexsdpa.spec.device import CPU, Device
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import TensorSpec
from flexsdpa.testing.fake_devices import CARDS, DEVICES, GB10, H100, H100_SECOND, RTX_5090
from null.toy_backend import PLAIN, request

KEY = PlanKey(
    direction="forward", backend="toy", versions=(("toy", "1.0"),), device_kind="cuda", device_index=0, device_uuid="GPU-1",
    device_capability=(9, 0), program="flexsdpa-ir 1\nscalars 0\nscore\nreturn score 0", dtype="f32",
    operands=(("f32", 1, "contiguous"),), scalars=1, shape_class=(64,), needs=(True, True, True), lse_gradient=False,
    deterministic=False,
)  # fmt: skip

CHANGED = {
    "direction": "backward", "backend": "other", "versions": (("toy", "1.1"),), "device_kind": "hip", "device_index": 1,
    "device_uuid": "GPU-2", "device_capability": (9, 1), "program": "flexsdpa-ir 1\nscalars 0\nscore\nneg 0\nreturn score 1",
    "dtype": "f64", "operands": (("f32", 1, "strided"),), "scalars": 2, "shape_class": (128,), "needs": (True, True, False),
    "lse_gradient": True, "deterministic": True,
}  # fmt: skip
"""Another value for every field."""


class TestEveryFieldCounts:
    def test_no_field_is_forgotten_here(self):
        assert set(CHANGED) == {field.name for field in fields(PlanKey)}

    @pytest.mark.parametrize("name", [field.name for field in fields(PlanKey)])
    def test_another_value_is_another_key(self, name):
        other = replace(KEY, **{name: CHANGED[name]})
        assert other != KEY
        assert other.digest() != KEY.digest()

    def test_all_digests_differ(self):
        digests = {replace(KEY, **{name: value}).digest() for name, value in CHANGED.items()}
        assert len(digests | {KEY.digest()}) == len(CHANGED) + 1

    def test_equal_keys_are_one(self):
        assert replace(KEY) == KEY
        assert hash(replace(KEY)) == hash(KEY)
        assert replace(KEY).digest() == KEY.digest()

    def test_a_key_cannot_be_changed(self):
        with pytest.raises(FrozenInstanceError):
            KEY.dtype = "f64"

    def test_the_digest_is_the_same_in_another_process(self):
        script = f"from flexsdpa.plans.key import PlanKey; print({KEY!r}.digest())"
        command = [sys.executable, "-c", script]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)}
        )
        assert done.stdout.strip() == KEY.digest()


OTHER_REQUESTS = {
    "direction": "backward",
    "device": H100,
    "program": CHANGED["program"],
    "arrays": (TensorSpec("f32", (4,)),),
    "scalars": 1,
    "needs": (True, False, True),
    "lse_gradient": True,
    "deterministic": True,
    "q": TensorSpec("f16", (2, 4, 16, 64)),
}
NOT_IN_THE_KEY = {
    "k": TensorSpec("f32", (2, 2, 99, 64)),
    "v": TensorSpec("f32", (2, 2, 99, 32)),
    "backend": "toy",
}
"""Lengths are the backend's to name (shape_class); whether it was chosen or named does not matter to the plan."""


class TestTheKeyOfARequest:
    def key(self, asked):
        return plan_key(asked, "toy", (("toy", "1.0"),), ())

    def test_every_field_of_a_request_is_accounted_for(self):
        assert set(OTHER_REQUESTS) | set(NOT_IN_THE_KEY) == {field.name for field in fields(AttentionRequest)}

    @pytest.mark.parametrize("name", OTHER_REQUESTS)
    def test_another_request_is_another_key(self, name):
        assert self.key(request(**{name: OTHER_REQUESTS[name]})) != self.key(PLAIN)

    @pytest.mark.parametrize("name", NOT_IN_THE_KEY)
    def test_what_no_plan_bakes_in_is_not_in_the_key(self, name):
        assert self.key(request(**{name: NOT_IN_THE_KEY[name]})) == self.key(PLAIN)

    @pytest.mark.parametrize(
        "array",
        [TensorSpec("f16", (4,)), TensorSpec("f32", (4, 1)), TensorSpec("f32", (4,), (2,)), TensorSpec("f32", (4,), (0,))],
    )
    def test_dtype_rank_and_stride_class_of_an_operand_count(self, array):
        plain = self.key(request(arrays=(TensorSpec("f32", (4,)),)))
        assert self.key(request(arrays=(array,))) != plain

    def test_the_size_of_an_operand_does_not(self):
        one, two = (self.key(request(arrays=(TensorSpec("f32", (n,)),))) for n in (4, 5))
        assert one == two

    def test_the_backends_own_words_on_shapes_count(self):
        assert plan_key(PLAIN, "toy", (), (64,)) != plan_key(PLAIN, "toy", (), (128,))


class TestAPlanBelongsToOneDevice:
    def key(self, device):
        return plan_key(request(device=device), "toy", (), ())

    def test_no_two_fake_devices_share_a_key(self):
        assert len({self.key(device) for device in DEVICES}) == len(DEVICES)
        assert len({self.key(device).digest() for device in DEVICES}) == len(DEVICES)

    def test_equal_cards_in_two_slots(self):
        assert H100.capability == H100_SECOND.capability
        assert self.key(H100) != self.key(H100_SECOND)

    def test_two_cards_of_one_family(self):
        assert RTX_5090.family == GB10.family
        assert self.key(RTX_5090) != self.key(GB10)

    def test_the_same_index_in_another_process_with_another_card(self):
        """CUDA_VISIBLE_DEVICES may put another card at index 0: the uuid tells."""
        moved = Device("cuda", 0, "GPU-other", H100.name, H100.capability)
        assert self.key(H100) != self.key(moved)

    @pytest.mark.parametrize(
        "change",
        [{"kind": "hip"}, {"index": 1}, {"uuid": "GPU-other"}, {"capability": (9, 1)}],
        ids=lambda change: next(iter(change)),
    )
    def test_each_part_of_its_identity_alone(self, change):
        assert self.key(replace(H100, **change)) != self.key(H100)

    def test_its_name_does_not_matter(self):
        assert self.key(replace(H100, name="another name")) == self.key(H100)

    def test_there_are_cards_to_test_with(self):
        assert CPU not in CARDS
        assert {card.family.name for card in CARDS} >= {"sm_8x", "sm_9x", "sm_10x", "sm_12x"}
