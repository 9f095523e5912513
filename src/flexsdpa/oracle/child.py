"""The child process: reads questions as JSON lines, builds plans with the cuDNN that its library path names, answers.

Started by run.py as ``python -m flexsdpa.oracle.child`` with the stand-in driver first on LD_LIBRARY_PATH. The first line that
it writes says which cuDNN and which frontend answer.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.metadata import version
from typing import Any

import cudnn

from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.oracle.cards import description
from flexsdpa.oracle.graphs import Asked, describe
from flexsdpa.oracle.programs import callbacks
from flexsdpa.spec.families import BY_NUMBER


def answer(question: dict[str, Any]) -> dict[str, str]:
    """Yes where a plan is built; no with the library's words; broken where the question could not be put."""
    card = BY_NUMBER[question["card"]]
    properties = cudnn.create_device_properties(description(card))
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.BFLOAT16,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        device_property=properties,
        sm_version=card.number,
        sm_count=card.multiprocessors,
    )
    try:
        asked = Asked(cudnn, graph, FieldCase.of(**question["case"]), question["statistics"])
        describe(asked, question["direction"], callbacks(asked, question["direction"], question["program"]))
    except Exception as error:
        return {"verdict": "broken", "reason": f"{type(error).__name__}: {reason_of(error)}"}
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
    except (cudnn.cudnnGraphNotSupportedError, ValueError, RuntimeError) as error:  # three ways in which it says no
        return {"verdict": "no", "reason": reason_of(error)}
    return {"verdict": "yes", "reason": ""}


GENERIC = ("finalize_internal()", "ptr->isSupported()", "process_knob_choices()", "(CUDNN_STATUS_NOT_INITIALIZED", "only ")
"""How reasons begin that say nothing of the question: which of cuDNN's functions failed, and engines of other families."""
LONGEST = 400


def reason_of(error: Exception) -> str:
    """The library's own words on one line: without the frontend's Python engines, which need packages of their own, and of
    a list of engines only what they differ in."""
    words = " ".join(str(error).split())
    declined = re.search(r"the backend declined: (.*?); python engines declined", words)
    words = declined[1] if declined else words
    if "engineId" in words:
        reasons = re.findall(r"Reason: (.*?)(?= Warning:| Error:| \{\"engineId| ; python|$)", words)
        told = dict.fromkeys(reason for reason in reasons if not reason.startswith(GENERIC))
        words = f"no engine takes it: {'; '.join(told)}"
    return words[:LONGEST]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    tell = {"cudnn": cudnn.backend_version_string(), "frontend": version("nvidia-cudnn-frontend")}
    print(json.dumps(tell), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps({"id": question["id"], **answer(question)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
