"""``python -m flexsdpa``."""

from flexsdpa.cli.main import app

app(prog_name="flexsdpa")
