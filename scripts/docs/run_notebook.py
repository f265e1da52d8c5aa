"""Execute docs/kernel_to_layout.ipynb in place (pip install nbclient ipykernel)."""

import argparse
from pathlib import Path

PATH = Path(__file__).parents[2] / "docs" / "kernel_to_layout.ipynb"


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(PATH, as_version=4)
    NotebookClient(notebook, record_timing=False).execute()
    notebook.metadata = {k: v for k, v in notebook.metadata.items() if k == "kernelspec"}
    nbformat.write(notebook, PATH)


if __name__ == "__main__":
    main()
