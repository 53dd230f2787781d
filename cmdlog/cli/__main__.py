"""`python -m cmdlog.cli`: the program without its installed script."""

from cmdlog.cli import main

main()
