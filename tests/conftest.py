"""The whole run uses Triton's interpreter, so that kernels run without a GPU.

Triton looks at the variable once, when it is first imported; pytest loads this file before any
test. A test that needs the real compiler runs it in a process of its own.
"""

import os

# On a machine with a GPU, PLANNER_TEST_DEVICE=cuda runs the kernel tests on it instead.
if os.environ.get("PLANNER_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
