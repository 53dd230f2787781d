"""A step of the build: puts `pyspark_cmdlog` next to our packages, at the top, where Spark looks for data sources.

One rule: the tree has no such module at its top, what is installed of it has one: wheel and editable install alike. (Setuptools
could map the name to another folder, but an editable install would then be an import hook, through which nothing can be listed.)

Setuptools runs this file by its path (pyproject.toml, `cmdclass`); nothing of ours can be imported then.
"""

from __future__ import annotations

import os

from setuptools.command.build_py import build_py

MODULE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "discover", "pyspark_cmdlog.py")


class BuildWithDiscovery(build_py):  # type: ignore[misc]
    """`build_py` that adds the module."""

    def run(self) -> None:
        super().run()
        top = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        self.mkpath(top)
        self.copy_file(MODULE, os.path.join(top, os.path.basename(MODULE)))
