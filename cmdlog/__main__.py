"""`python -m cmdlog` is the program `cmdlog`."""

from __future__ import annotations

from cmdlog.cli import main

main()
