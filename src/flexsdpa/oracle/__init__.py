"""Asks cuDNN itself, on a machine without a GPU, whether it plans a call for a described card; and what it said before.

The driver library is replaced by a stand-in (standin.c) in a child process alone; a card is a description (cards.py);
a question (questions.py) becomes a cuDNN graph (graphs.py); answers are kept as data in records/ (records.py), and
check.py compares them with the rules.
"""
