"""The command line: parse, call, print. Nothing here computes."""
