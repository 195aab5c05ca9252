"""The workspace of tree_jail.py: made once with the machine's own programs, and copied from then on."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_EVALUATED = "path[$(evil)]"  # an array of zsh, which evaluates no subscript of what is none
_PLAIN = {
    "a.txt": "a\nb\n", "b.txt": "b\n", "t.json": '{"evil": 1}\n', "rc": "evil\n", "num": "3\n", "env": "e\n",
    "names": f"{_EVALUATED}\n$(evil)\n`evil`\n", "names2": ".envrc\n.mcp.json\n", "names3": "evil\n", ".env": "e\n",
    ".mcp": "m\n", ".envrc": "v\n", ".mcp.json": "{}\n", ".vscode/tasks.json": "{}\n", "sub/.envrc": "v\n",
    "sub/.vscode/tasks.json": "{}\n", "sub/a.txt": "a\n", "sub/deep/.mcp.json": "{}\n", ".idea/x": "x\n",
    "w.code-workspace": "{}\n", "d/f": "f\n", "plain.txt": "plain\n", "s/.envrc": "evil\n",
    "hooks/post-checkout": "evil\n",
    "p.diff": "--- a.txt\n+++ a.txt\n@@ -1,2 +1,2 @@\n-a\n+z\n b\n",
    "bad.diff": "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-q\n+z\n",
    "v.diff": "--- .env\n+++ .env\n@@ -1 +1 @@\n-e\n+f\n", "ed.diff": "1c\nx\n.\n",
    "e.patch": "--- a/.envrc\n+++ b/.envrc\n@@ -1 +1 @@\n-v\n+evil\n",
    "l.patch": "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+{outside}\n\\ No"
               " newline at end of file\n",
    "s.sed": "w .envrc\n", "s.awk": '{print > ".envrc"}\n', "b64.txt": "YQo=\n", "a.hex": "00000000: 6161 aa\n",
    "rc.curl": 'url = "file://{work}/a.txt"\noutput = ".envrc"\nsilent\n', ".curlrc": 'output = ".envrc"\n',
    ".zshenv": "evil\n", ".gitconfig": "[core]\n\tfsmonitor = evil\n\teditor = evil\n",
    "git/config": "[core]\n\tfsmonitor = evil\n",
    "ssl.cnf": "openssl_conf = a\n[a]\nengines = b\n[b]\nc = d\n[d]\ndynamic_path = {work}/pre.so\ninit = 0\n",
    "rc.wget": "output_document = .envrc\n", "c.c": "int x;\n", f"n/{_EVALUATED}": "", "n/$(evil)": "",
    "x[$(evil)]": "",
}  # fmt: skip
_PRELOADED = """
#include <stdio.h>
__attribute__((constructor)) static void begun(void) {{
    FILE *log = fopen("{log}", "a");
    if (log) {{ fputs("0", log); fputc(0, log); fputs("preloaded", log); fputc(0, log); fclose(log); }}
}}
"""
_BY_SHELL = r"""
set -e
ln -s "$OUTSIDE" link; ln -s "$OUTSIDE" d/l; mkdir -p out sub/.idea 1 3
git init -q --template= r; cd r; ln -s "$OUTSIDE" l; echo f > f; git add .; git commit -qm r; cd ..
git init -q --template= .; git add a.txt b.txt plain.txt sub/a.txt; git commit -qm 'path[$(evil)]'
echo c >> a.txt; git commit -qam two
git checkout -qb br; ln -s "$OUTSIDE" l; git add l; git commit -qm l; git checkout -q m; git gc -q
printf 'From x\nFrom: a <a@b>\nSubject: e\n\n---\n' > e.mbox; cat e.patch >> e.mbox
mkdir -p .git/info r/.git/info tmp; cd tmp
ln -s "$OUTSIDE" l; ln -s "$OUTSIDE" zl; cp ../plain.txt plain; mkdir sub; cp plain sub/.envrc
tar cf ../a.tar l plain; tar cf ../s.tar plain; tar cf ../v.tar plain
(zip -qy ../z.zip zl; zip -q ../s.zip plain) || true
ar rc ../a.a plain || true; cp plain .envrc; gzip .envrc; cp .envrc.gz ../n.gz; cd ..; rm -r tmp
for kind in gzip bzip2 xz; do cp a.txt .envrc.new; $kind -f .envrc.new || true; done
mv .envrc.new.gz .envrc.gz; mv .envrc.new.bz2 .envrc.bz2 || true; mv .envrc.new.xz .envrc.xz || true; rm -f .envrc.new
cp .envrc.gz .envrc.x; cp .envrc.gz sub/g.gz
"""


def make_tree(work: Path, root: Path, log: str) -> None:
    """Fill `work`. What a library that is loaded into programs does is to write `preloaded` into the log of stubs."""
    outside = root / "elsewhere"
    for name, text in _PLAIN.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{work}", str(work)).replace("{outside}", str(outside)))
    settings = {"user.name": "a", "user.email": "a@b", "init.defaultBranch": "m"}
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(root / "home"), "OUTSIDE": str(outside)}
    environment["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    subprocess.run(["bash", "-c", _BY_SHELL], cwd=work, env=environment, check=True, stdout=subprocess.DEVNULL)
    if shutil.which("cc"):
        (work / "pre.c").write_text(_PRELOADED.format(log=log))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "pre.so", "pre.c"], cwd=work, check=True)
        (work / "pre.c").unlink()
