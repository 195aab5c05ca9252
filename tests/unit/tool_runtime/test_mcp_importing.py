"""The SDK's import, cut short where the process ends: in interpreters of their own, which have not imported it."""

from __future__ import annotations

import subprocess
import sys

import pytest

STOPPED_FIRST = """
import sys, threading
from tool_runtime.tool import ToolFault
from tool_runtime.remote.mcp.source import SdkImport
one = SdkImport()
one.stop()
said = []
def load():
    try:
        one.load()
    except ToolFault as fault:
        said.append(str(fault))
thread = threading.Thread(target=load)
thread.start()
thread.join()
assert one not in sys.meta_path
import email.mime.text  # other threads import as before
print(said, "mcp" in sys.modules, "httpx2" in sys.modules)
"""
STOPPED_IN_THE_MIDDLE = """
import sys, threading
from tool_runtime.tool import ToolFault
from tool_runtime.remote.mcp.source import SdkImport
class Watched(SdkImport):
    def find_spec(self, fullname, path, target=None):
        if fullname == "mcp_types._types":
            self.stop()
        return super().find_spec(fullname, path, target)
try:
    Watched().load()
except ToolFault as fault:
    print([str(fault)], "mcp.client.client" in sys.modules, "mcp_types._types" in sys.modules)
"""
BESIDE_OTHERS = """
import sys
from tool_runtime.tool import ToolFault
from tool_runtime.remote.mcp.source import SdkImport
under_way = iter(sys.meta_path)  # an import of another thread
finders = list(sys.meta_path)
seen = [next(under_way)]
class Watched(SdkImport):
    def find_spec(self, fullname, path, target=None):
        if len(seen) == 1:
            seen.extend(under_way)
        self.stop()
        return super().find_spec(fullname, path, target)
one = Watched()
try:
    one.load()
except ToolFault as fault:
    print([str(fault)], seen != finders, one in sys.meta_path)
"""


@pytest.mark.parametrize("code", [STOPPED_FIRST, STOPPED_IN_THE_MIDDLE, BESIDE_OTHERS])
def test_an_import_ends_at_its_next_module(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "['the session is over'] False False"
