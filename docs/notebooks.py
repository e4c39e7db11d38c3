"""Execute the tutorials whose code has changed since their outputs were made: ``python docs/notebooks.py [--all]``.

A notebook stores the hash of its code beside its outputs, so that an unchanged one is not executed again.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

TUTORIALS = sorted((Path(__file__).parent / "tutorials").glob("*.ipynb"))


def code_of(notebook):
    """Sources of the code cells."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def hash_of(notebook):
    """Hash of the code that the outputs belong to."""
    return hashlib.sha256("\n\n".join(code_of(notebook)).encode()).hexdigest()[:16]


def execute(path):
    """Execute a notebook and write its outputs, without times and error streams."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, record_timing=False, resources={"metadata": {"path": path.parent}}).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "mesascope": {"executed": hash_of(notebook)}}
    nbformat.write(notebook, path)


def main():
    os.environ |= {"MESASCOPE_PROGRESS": "0", "OMP_NUM_THREADS": "1"}
    for path in TUTORIALS:
        notebook = json.loads(path.read_text())
        if "--all" in sys.argv or notebook["metadata"].get("mesascope", {}).get("executed") != hash_of(notebook):
            print(f"executing {path.name}")
            execute(path)


if __name__ == "__main__":
    main()
