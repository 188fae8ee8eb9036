import subprocess
import sys

CHECK = """
import sys
import roost.api
loaded = set(sys.modules)
unwanted = {m for m in loaded if m.startswith(("roost._native", "roost.models", "roost.kernels",
    "roost.programs", "roost.runner", "roost.worker", "roost.weights", "numpy"))}
assert not unwanted, unwanted
"""


def test_the_api_loads_neither_the_native_library_nor_a_model() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True, timeout=60)
