"""Makes notebooks/NN_name.ipynb from the lessons: python docs/make_notebooks.py

Colab opens notebooks from a public repository only, so they are committed; a test holds them equal
to what this makes.
"""

from pathlib import Path

import cells

ROOT = Path(__file__).parent.parent
REPOSITORY = "tinyrvllm/tinyrvllm"  # owner/name on GitHub: where the badges point
SETUP = f"""\
# Fetches the project and chooses a device: an NVIDIA GPU where there is one, else this CPU.
import os, shutil, subprocess, sys
if not os.path.exists("lessons"):
    url = "https://github.com/{REPOSITORY}"
    subprocess.run(["git", "clone", "-q", url, "tinyrvllm"], check=True)
    os.chdir("tinyrvllm")
extra = "cuda" if shutil.which("nvidia-smi") else "soft"
install = [sys.executable, "-m", "pip", "install", "-q", "-e", f".[plots,soft,{{extra}}]"]
subprocess.run(install, check=True)
os.environ["TINYRVLLM_DEVICE"] = extra
sys.path[:0] = [os.path.abspath("lessons"), os.getcwd()]"""


def colab(name: str) -> str:
    """Where Colab opens a lesson."""
    return f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{name}.ipynb"


def badge(name: str) -> str:
    """Markdown: a button for that."""
    button = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![Open in Colab]({button})]({colab(name)})"


def make(path: Path) -> str:
    """The notebook of a lesson."""
    return cells.notebook(cells.read(path), badge(path.stem), SETUP)


def main() -> None:
    folder = ROOT / "notebooks"
    folder.mkdir(exist_ok=True)
    for path in sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py")):
        (folder / f"{path.stem}.ipynb").write_text(make(path), encoding="utf-8")


if __name__ == "__main__":
    main()
