"""One cuDNN graph: declared, built or loaded from disk, fed and run. Tensors are known by uid, which outlives a process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import cudnn
import torch
from torch import Tensor

from flexsdpa.backends.cudnn.layout import Piece
from flexsdpa.backends.cudnn.lower import Length, Literal, Number, Operand, Start, View
from flexsdpa.backends.cudnn.torch_operands import Operands, host_number, number
from flexsdpa.ir.program import Program

TYPES = cudnn.data_type
DATA_TYPES = {
    torch.float16: TYPES.HALF, torch.bfloat16: TYPES.BFLOAT16, torch.float32: TYPES.FLOAT, torch.int32: TYPES.INT32,
}  # fmt: skip
OPERANDS: dict[str, type[Operand]] = {kind.__name__: kind for kind in (Number, Literal, Start, Length, View)}


class Graph:
    """A graph and what goes into it. ``graph`` is cuDNN's object; ``uids`` names its tensors."""

    def __init__(self, program: Program, graph: Any) -> None:
        self.program = program
        self.graph = graph
        self.uids: dict[str, int] = {}
        self.operands = Operands(program)
        self.scale = number(0.0, "f")
        self.examples: dict[View, Tensor] = {}
        self.workspace_bytes = 1

    @staticmethod
    def empty(program: Program, dtype: torch.dtype, handle: Any) -> Graph:
        """A graph to be described and built."""
        kind = DATA_TYPES[dtype]
        graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=TYPES.FLOAT, compute_data_type=TYPES.FLOAT, handle=handle)
        return Graph(program, graph)

    @staticmethod
    def loaded(program: Program, data: bytes, handle: Any) -> Graph:
        """A graph as ``saved`` wrote it. Raises what cuDNN raises for bytes that it does not take."""
        head, _, plan = data.partition(b"\n")
        facts = json.loads(head)
        made = Graph(program, cudnn.pygraph(handle=handle))
        made.uids = facts["uids"]
        for name, fields, uid in facts["operands"]:
            fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
            made.operands.add(OPERANDS[name](**fields), uid)
        made.workspace_bytes = facts["workspace"]
        made.graph.deserialize(handle, plan)
        return made

    def saved(self) -> bytes:
        """The built plan, and which uid takes what."""
        operands = [
            (type(what).__name__, {name: getattr(what, name) for name in what.__slots__}, uid) for what, uid in self.operands.all
        ]
        facts = {"uids": self.uids, "operands": operands, "workspace": self.workspace_bytes}
        return json.dumps(facts).encode() + b"\n" + bytes(self.graph.serialize(as_bytes=True))

    def input(self, name: str, like: Tensor, by_value: bool = False) -> Any:
        uid = self.uids[name] = len(self.uids) + 1
        return self.graph.tensor(
            name=name,
            dim=list(like.shape),
            stride=list(like.stride()),
            data_type=DATA_TYPES[like.dtype],
            is_pass_by_value=by_value,
            uid=uid,
        )

    def output(self, name: str, tensor: Any, like: Tensor) -> None:
        uid = self.uids[name] = len(self.uids) + 1
        tensor.set_output(True).set_uid(uid)
        tensor.set_dim(list(like.shape)).set_stride(list(like.stride())).set_data_type(DATA_TYPES[like.dtype])

    def declare(self, what: Operand) -> Any:
        """The input of a lowered operand."""
        name = f"operand{len(self.operands.all)}"
        like = self.examples[what] if isinstance(what, View) else host_number(what)
        made = self.input(name, like, by_value=not isinstance(what, View))
        self.operands.add(what, self.uids[name])
        return made

    def build(self) -> None:
        """Plans and compiles. Raises cudnnGraphNotSupportedError where cuDNN has no kernel."""
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.graph.check_support()
        self.graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
        self.workspace_bytes = max(int(self.graph.get_workspace_size()), 1)
        self.examples = {}

    def run(
        self, tensors: dict[str, Tensor], arrays: Sequence[Tensor], scalars: Sequence[float], piece: Piece, handle: Any
    ) -> None:
        """Runs on tensors by name, captured tensors and scalars (the softmax scale first)."""
        uids = self.uids
        packed = self.operands.packed(arrays, scalars[1:], tensors["q"].shape[:2], piece)
        packed[uids["scale"]] = self.scale.fill_(scalars[0])
        for name, x in tensors.items():
            packed[uids[name]] = x
        workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=tensors["q"].device)
        self.graph.execute(packed, workspace, handle=handle)
