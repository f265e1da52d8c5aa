"""Put the catalogue, which lives beside the package, into what is installed."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithCatalogue(build_py):
    """Copies problems/ to layoutopt/files/catalogue/; an editable install reads it where it is."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if not self.editable_mode:
            place = Path(self.build_lib) / "layoutopt" / "files" / "catalogue"
            shutil.copytree("problems", place, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithCatalogue})
