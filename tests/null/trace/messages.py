"""Reading the errors of a trace: headline, place and advice."""

import pytest

from flexsdpa.errors import TraceError
from null.helpers import traced


def error_of(score_mod=None, mask_mod=None, kind=TraceError):
    """The error that tracing raises, with its rows by label."""
    with pytest.raises(kind) as raised:
        traced(score_mod, mask_mod)
    headline, *rows = str(raised.value).split("\n")
    pairs = (row.strip().split("  ", 1) for row in rows)
    return headline, {label: text.strip() for label, text in pairs}
