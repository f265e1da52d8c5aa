"""Execute docs/kernel_to_layout.ipynb in place (pip install nbclient ipykernel)."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).parents[2] / "docs" / "kernel_to_layout.ipynb"


def main():
    notebook = nbformat.read(PATH, as_version=4)
    NotebookClient(notebook, record_timing=False).execute()
    notebook.metadata = {k: v for k, v in notebook.metadata.items() if k == "kernelspec"}
    nbformat.write(notebook, PATH)


if __name__ == "__main__":
    main()
