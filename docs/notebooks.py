"""Makes notebooks/NN_name.ipynb from the lessons: python docs/notebooks.py

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
    subprocess.run(["git", "clone", "-q", "https://github.com/{REPOSITORY}", "tinyrvllm"], check=True)
    os.chdir("tinyrvllm")
extra = "cuda" if shutil.which("nvidia-smi") else "soft"
subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-e", f".[plots,soft,{{extra}}]"], check=True)
os.environ["TINYRVLLM_DEVICE"] = extra
sys.path.insert(0, os.getcwd())"""


def badge(name: str) -> str:
    """Markdown: opens a lesson in Colab."""
    url = f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{name}.ipynb"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({url})"


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
