"""One row for each program in policy: data only. A program without a row counts as one that may start anything.

`options` is a text of tokens, one for each option: its spellings, joined by commas, then how it takes a value, then
what it does, if that matters:

    -f,--force                no value
    -m,--mode=                a value: joined, or the next word
    --backup?                 a value that can only be joined
    -t,--target-directory=into  a value, and its role
    -r,--recursive:tree       a role without a value; several are joined by `+`
    -#                        digits behind a dash

Roles of values: `read`, `write` (a file), `into` (a directory that files are made in), `suffix`, `prefix`, `script`,
`archive`, `address`. Roles of options: `tree` (goes down a tree), `links` (copies links as links), `exact` (the target
is no directory to copy into), `backup`, `keep`, `stdout`, `unpack` and the like, which the functions of
`policy.shell.file_effects` read. `!` runs or writes something that the line does not show.

`operands` describes the words without a dash: `read`, `write`, `delete`, `skip` by position, each with `?` or `*`; or
one name of a table there. For a program that `starts` the one after it: `skip` for each word of its own, `set` if it
takes assignments, `program`, `input` if words are added from its input.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

Starts = Literal["", "behind", "somewhere", "language", "shell", "unread shell", "code", "files"]
"""The way in which a program starts others: not at all; the program after its own words; one at an unknown position in
its arguments; by its own commands; from shell text or code in its arguments; as described by `what`."""


class Program(NamedTuple):
    """A row. `risky` is a pattern of single arguments that do what `!` does, for options that are spelled in no usual
    way; `words` are operands that do. `stops`: options end at the first operand. `one_option`: only the first word may
    be one. `bare`: the first word is a cluster of options without a dash. `network`: it is there to talk over the
    network; `online`: its subcommands that do."""

    starts: Starts = ""
    what: str = ""
    options: str = ""
    risky: str = ""
    words: str = ""
    operands: str = ""
    subcommands: tuple[tuple[str, Program], ...] = ()
    stops: bool = False
    bare: bool = False
    one_option: bool = False
    network: bool = False
    online: str = ""

    def subcommand(self, name: str | None) -> Program | None:
        """The row of a subcommand, or that of `*`, which stands for those that have none."""
        if name is None:
            return None
        return next((row for one, row in self.subcommands if one in {name, "*"}), None)


class Option(NamedTuple):
    """An option of a row. `value`: it takes none, it needs one, or it takes one that is joined to it."""

    value: Literal["none", "needed", "joined"]
    roles: frozenset[str]

    @property
    def is_risky(self) -> bool:
        """True if it runs or writes something that the line does not show."""
        return "!" in self.roles


@lru_cache(maxsize=256)
def options_of(text: str) -> dict[str, Option]:
    """The options of a row by each of their spellings, with their dashes. A later token replaces an earlier one."""
    found: dict[str, Option] = {}
    for token in text.split():
        ends = [at for at in (token.find(mark, 1) for mark in "=?:!") if at > 0]
        end = min(ends, default=len(token))
        mark, roles = token[end : end + 1], token[end:].lstrip("=?:")
        value: Literal["none", "needed", "joined"] = {"=": "needed", "?": "joined"}.get(mark, "none")  # type: ignore[assignment]  # the table's values are of the type
        option = Option(value, frozenset(roles.split("+")) if roles else frozenset())
        found.update(dict.fromkeys(token[:end].split(","), option))
    return found


Rows = dict[str, Program]
PLAIN = Program()
"""The row of programs without relevant options."""


def rows(table: dict[str, Program]) -> Rows:
    """A table whose keys are the names of several programs each, with one key a name."""
    return {name: PLAIN if row == PLAIN else row for names, row in table.items() for name in names.split()}


# Programs that read text and write it to their output, those that change, copy, pack and find files, and those of a
# machine's state.


_PATTERNS = (
    "-e,--regexp= -f,--file= -m,--max-count= -A,--after-context= -B,--before-context= -C,--context= "
    "--include= --exclude= "
)
_INTO = "-t,--target-directory=into -T,--no-target-directory:exact -S,--suffix=suffix -b:backup --backup?backup "
_COMMON = "-f,--force -i,--interactive -v,--verbose --debug --help --version -Z --context? "
_RECURSIVE = "-R,--recursive:tree -H -L -P -h,--no-dereference:tree --dereference -x -n "
_CHANGING = "-c,--changes -f,--silent,--quiet -v,--verbose --preserve-root --no-preserve-root --help --version "
_PACKS = (
    "-v,--verbose -q,--quiet -f,--force -h,--help -V,--version -L,--license -# -d,--decompress,--uncompress:unpack "
    "-k,--keep:keep -c,--stdout,--to-stdout:stdout -t,--test:stdout "
)
_GZIP = _PACKS + (
    "-l,--list:stdout -n,--no-name -N,--name:named -r,--recursive:tree -S,--suffix=suffix -a,--ascii --fast --best "
    "--rsyncable --synchronous"
)
_BZIP = _PACKS + "-z,--compress -s,--small --fast --best --repetitive-fast --repetitive-best"
_XZ = _PACKS + (
    "-z,--compress -l,--list:stdout -S,--suffix=suffix --files?unnamed --files0?unnamed --single-stream --no-sparse "
    "-F,--format= -C,--check= --ignore-check -e,--extreme --fast --best -T,--threads= --block-size= --block-list= "
    "--flush-timeout= -M,--memlimit,--memory= --memlimit-compress= --memlimit-decompress= --memlimit-mt-decompress= "
    "--no-adjust --no-sync -Q,--no-warn --robot --info-memory --lzma1? --lzma2? --x86 --arm --arm64 --armthumb "
    "--powerpc --sparc --ia64 --riscv --delta? -H,--long-help"
)
_ZSTD = _PACKS + (
    "-z,--compress -o=write -l,--list:stdout -r:tree --rm:remove --output-dir-flat=into --output-dir-mirror=into "
    "--filelist=unnamed -T= --threads= -D= -M= --memory= --long? --fast? --ultra --adaptive? --single-thread "
    "--rsyncable --no-progress --progress --check --no-check -C --sparse --no-sparse --format= --exclude-compressed "
    "--no-name -b? -e? -i? -B? -S -p --pass-through --stream-size= --size-hint= --patch-from= --train? "
    "--auto-threads="
)
_LZ4 = _PACKS + (
    "-z,--compress -m,--multiple:many -r:many --rm:remove -l -B? -D= -T= --long? --fast? --best --favor-decSpeed "
    "--list:stdout --no-frame-crc --frame-crc --content-size --sparse --no-sparse -b? -e? -i?"
)
_TAR = (
    "-x,--extract,--get:extract -c,--create:create -r,--append:create -u,--update:create "
    "-A,--catenate,--concatenate:create -t,--list -d,--diff,--compare --delete:create --test-label -f,--file=archive "
    "-C,--directory,--cd=into -I,--use-compress-program=! -F,--info-script,--new-volume-script=! --to-command=! "
    "--checkpoint --checkpoint-action=! --rsh-command=! --rmt-command=! --index-file=write -T,--files-from=listed "
    "--verbatim-files-from,--null:verbatim -P,--absolute-names:anywhere -g,--listed-incremental=write "
    "--one-top-level?into -O,--to-stdout:stdout --force-local:local -b,--blocking-factor= -H,--format= "
    "-K,--starting-file= -L,--tape-length= -N,--newer,--after-date= -V,--label= -X,--exclude-from= --exclude= "
    "--strip-components= --transform,--xform=renames --owner= --group= --mode= --mtime= --sort= --record-size= "
    "--suffix= --newer-mtime= --level= --owner-map= --group-map= --quoting-style= --remove-files:remove "
    "--volno-file=write --pax-option= -z,--gzip,--gunzip,--ungzip -j,--bzip2 -J,--xz --lzip --lzma --lzop --zstd "
    "-Z,--compress -a,--auto-compress -v,--verbose -p,--preserve-permissions,--same-permissions -m,--touch "
    "-k,--keep-old-files -h,--dereference -w,--interactive -W,--verify -l,--check-links -n,--seek -o,--no-same-owner "
    "-s -S,--sparse -U,--unlink-first -i,--ignore-zeros -B,--read-full-records -M,--multi-volume -G,--incremental "
    "-R,--block-number --exclude-vcs --exclude-vcs-ignores --wildcards --no-wildcards --no-recursion --overwrite "
    "--no-same-permissions --numeric-owner --hard-dereference --totals? --utc --warning="
)


def _given(operands: str, options: str = "", *, risky: str = "", bare: bool = False, network: bool = False) -> Program:
    """A program whose operands have a meaning."""
    return Program(options=options, risky=risky, operands=operands, bare=bare, network=network)


FILE_ROWS = rows(
    {
        "cat comm column expand fold fmt head tail join nl od paste pr rev seq tac tr tsort unexpand wc yes hexdump "
        "strings cut colrm look numfmt jq base64 base32 basenc factor expr true false sleep echo printf test [ date "
        "cal arch free getconf groups hostname id kill killall pkill pgrep locale lscpu nproc printenv ps tty uname "
        "uptime users who whoami w logname hostid lsof pwd cd dirs : break continue exit return shift umask "
        "getopt tput clear reset true dmesg vmstat iostat last finger zcat bzcat xzcat lzcat lz4cat "
        "ptx ugrep-indexer": Program(),
        "ldd": Program("files", "code of a library that the file names"),
        "date": Program(options="-s,--set=! -d,--date= -f,--file= -r,--reference= -I?", risky=r"-s.*"),
        "jobs": Program(options="-x:!"),
        "test [": _given("test"),
        "printf": _given("printf"),
        "grep egrep fgrep zgrep bzgrep xzgrep": Program(options=_PATTERNS),
        "rg": Program(
            options=_PATTERNS + "--pre=! --hostname-bin=! -z,--search-zip:! -g,--glob= -t,--type= -T,--type-not= -M= "
            "-r,--replace= -j= --pre-glob= -E= -d=",
            risky=r"-[A-Za-z0-9.]*z.*",
        ),
        "ag ack": Program(options="--pager=!"),
        "ugrep ug": Program(risky=r"--(?:pag|filter|vi).*"),
        "bat batcat": Program(options="--pager=! --diff:!"),
        "sort": Program(
            options="-o,--output=write --compress-program=! -k,--key= -t,--field-separator= -S,--buffer-size= "
            "-T,--temporary-directory= --parallel= --batch-size= --files0-from= --random-source= --sort= --check?"
        ),
        "uniq": _given(
            "skip write",
            "-c,--count -d,--repeated -D --all-repeated? -f,--skip-fields= --group? -i,--ignore-case "
            "-s,--skip-chars= -u,--unique -z,--zero-terminated -w,--check-chars= -# --help --version",
        ),
        "xxd": _given(
            "skip write",
            "-a,-autoskip -b,-bits -c,-cols= -C,-capitalize -d -E,-EBCDIC -e -g,-groupsize= -h,-help -i,-include "
            "-l,-len= -n,-name= -o= -p,-ps,-postscript,-plain -r,-revert -R= -s,-seek= -u -v,-version -t --help",
        ),
        "tsort": Program(),
        "split": _given(
            "split",
            "-a,--suffix-length= --additional-suffix= -b,--bytes= -C,--line-bytes= -d --numeric-suffixes? -x "
            "--hex-suffixes? -e,--elide-empty-files --filter=! -l,--lines= -n,--number= -t,--separator= "
            "-u,--unbuffered --verbose -# --help --version",
        ),
        "csplit": _given(
            "csplit",
            "-b,--suffix-format= -f,--prefix=prefix -k,--keep-files --suppress-matched -n,--digits= "
            "-s,-q,--quiet,--silent -z,--elide-empty-files --help --version",
        ),
        "shuf": Program(options="-o,--output=write -n,--head-count= -i,--input-range= --random-source="),
        "iconv": Program(options="-o,--output=write -f,--from-code= -t,--to-code="),
        "sed": _given(
            "sed",
            "-n,--quiet,--silent -E,-r,--regexp-extended -s,--separate -u,--unbuffered -z,--null-data --posix "
            "-e,--expression=script -i?suffix+inplace --in-place?suffix+inplace",
        ),
        "awk gawk mawk nawk original-awk bwk": _given("awk"),
        "yq": _given(
            "yq",
            "-i,--inplace:inplace -I,--indent= -o,--output-format= -p,--input-format= --from-file= "
            "-s,--split-exp=! --split-exp-file=!",
        ),
        "patch": _given(
            "patch",
            "-o,--output=write -r,--reject-file=write -i,--input= -d,--directory=into -e,--ed:! -g,--get=! "
            "-b,--backup:backup -z,--suffix=suffix -B,--prefix=prefix -Y,--basename-prefix=prefix "
            "-V,--version-control= -p,--strip= -F,--fuzz= -D,--ifdef= -R,--reverse -N,--forward "
            "-E,--remove-empty-files -f,--force -t,--batch -s,--quiet,--silent -u,--unified -c,--context -n,--normal "
            "-l,--ignore-whitespace -T,--set-time -Z,--set-utc --dry-run:stdout --merge? --verbose --binary --posix "
            "-v,--version --backup-if-mismatch --no-backup-if-mismatch --read-only= --reject-format= "
            "--follow-symlinks --quoting-style= --help",
        ),
        "diff sdiff diff3": Program(options="--diff-program=! -o,--output=write"),
        "man": Program(
            options="-P,--pager=! -H,--html:! -X,--gxditview:! -C,--config-file=! -L,--locale=!",
            risky=r"-[A-Za-z0-9]*[PHLCX].*",
        ),
        "exiftool": Program(risky=r"-if.*|-config.*|-p|-@"),
        "pandoc": Program(
            options="-o,--output=write --filter=! --lua-filter=! -d,--defaults=! --pdf-engine=! "
            "--pdf-engine-opt=! --data-dir=! -F=! -L=!",
            risky=r"-[hisvpN]*[FLd].*|.*\.lua",
        ),
        "openssl": Program(
            options="-out=write -keyout=write -writerand=write --engine=! -engine=! -provider=! -config=! -in= "
            "-key= -days=",
            risky=r"--?(?:engine|provider|config).*",
            words="engine",
        ),
        "gs": Program(risky=r"-c|-dNOSAFER.*|.*%pipe%.*|.*=\|.*|--permit.*"),
        "groff": Program(risky=r"-[A-Za-z0-9]*[UXl].*"),
        "dvips": Program(risky=r"-R0|-o[|!].*|[|!].*"),
        "latex pdflatex xelatex lualatex tex pdftex xetex luatex": Program(risky=r"--?(?:sh|en|write18|lua).*"),
        "cloc": Program(options="--extract-with=! --vcs=!"),
        "m4": Program("language"),
        "rm": _given(
            "delete*",
            "-r,-R,--recursive:tree -f,--force -i -I --interactive? -d,--dir -v,--verbose --one-file-system "
            "--preserve-root? --no-preserve-root -P -W -x --help --version",
        ),
        "rmdir": _given("delete*", "-p,--parents --ignore-fail-on-non-empty -v,--verbose --help --version"),
        "unlink": _given("delete*", "--help --version"),
        "mv": _given(
            "copy", _INTO + _COMMON + "-n,--no-clobber --no-copy --exchange --strip-trailing-slashes -u --update? -h"
        ),
        "cp": _given(
            "copy",
            _INTO
            + _COMMON
            + "-r,-R,--recursive:tree+links -a,--archive:tree+links -d,-P,--no-dereference:links -L,--dereference -H "
            "-l,--link -s,--symbolic-link:symbolic --parents:parents -n,--no-clobber -p --preserve? --no-preserve= "
            "--attributes-only --copy-contents --reflink? --remove-destination --sparse= -u --update? "
            "--strip-trailing-slashes -x,--one-file-system -X -c -N --keep-directory-symlink",
        ),
        "ln": _given(
            "copy",
            _INTO + _COMMON + "-s,--symbolic:symbolic -r,--relative:relative -d,-F,--directory -L,--logical "
            "-n,--no-dereference -P,--physical -h -w",
        ),
        "link": _given("read write", "--help --version"),
        "install": _given(
            "copy",
            _INTO + _COMMON + "-d,--directory:directories -D -c -C,--compare -p,--preserve-timestamps -s,--strip "
            "--strip-program=! -m,--mode= -o,--owner= -g,--group= --preserve-context -U,--unprivileged",
        ),
        "rsync": _given(
            "sync",
            "-e,--rsh=! --rsync-path=! --daemon:! --config=! --password-command=! -r,--recursive:tree "
            "-a,--archive:tree+links -l,--links:links -b,--backup:backup --backup-dir=into --suffix=suffix "
            "--log-file=write --write-batch=write --only-write-batch=write -f,--filter= --exclude= --include= "
            "--exclude-from= --include-from= --files-from= --compare-dest= --copy-dest= --link-dest= -T,--temp-dir= "
            "--partial-dir=into -B,--block-size= --bwlimit= --timeout= --port= --chmod= --chown= --info= --debug= "
            "--out-format= --max-size= --min-size= --delete -M,--remote-option= --password-file= --iconv= --protocol= "
            "--stop-after= --modify-window= -@=",
            risky=r"-[A-Za-z0-9]*e.*",
            network=True,
        ),
        "chmod": _given(
            "mode",
            _CHANGING + "-R,--recursive:tree --reference=reference -h,--no-dereference --dereference -H -L -P "
            "-r,-w,-x,-X,-s,-t,-u,-g,-o,-a,-+,-#?mode",
        ),
        "chown chgrp": _given("mode", _CHANGING + _RECURSIVE + "--reference=reference --from="),
        "tee": _given("write*", "-a,--append -i,--ignore-interrupts -p --output-error? --help --version"),
        "touch": _given(
            "write*",
            "-a -c,--no-create -d,--date= -f -h,--no-dereference -m -r,--reference= -t= -A= --time= --help --version",
        ),
        "mkdir": _given("write*", "-m,--mode= -p,--parents -v,--verbose -Z --context? --help --version"),
        "mkfifo": _given("write*", "-m,--mode= -Z --context? --help --version"),
        "mknod": _given("write skip*", "-m,--mode= -Z --context? --help --version"),
        "truncate": _given("write*", "-c,--no-create -o,--io-blocks -r,--reference= -s,--size= --help --version"),
        "shred": _given(
            "delete*",
            "-f,--force -n,--iterations= --random-source= -s,--size= -u --remove? -v,--verbose -x,--exact "
            "-z,--zero --help --version",
        ),
        "dd": _given("dd"),
        "find bfs": _given("find"),
        "fd fdfind": Program(options="-x,--exec=! -X,--exec-batch=!"),
        "gzip": _given("pack", _GZIP),
        "gunzip": _given("unpack", _GZIP + " -z:unpack"),
        "bzip2": _given("pack", _BZIP),
        "bunzip2": _given("unpack", _BZIP),
        "xz lzma": _given("pack", _XZ),
        "unxz unlzma": _given("unpack", _XZ),
        "zstd zstdmt": _given("pack", _ZSTD),
        "unzstd": _given("unpack", _ZSTD),
        "zstdcat": Program(options=_ZSTD),
        "lz4": _given("lz4", _LZ4),
        "compress": _given("pack", "-d:unpack -k:keep -c:stdout -f -v -r:tree -b= -V"),
        "uncompress": _given("unpack", "-k:keep -c:stdout -f -v -r:tree -V"),
        "tar bsdtar": _given("tar", _TAR, bare=True),
        "unzip": _given(
            "extract",
            "-d=into -P= -x -o -n -j -q -a -b -C -K -L -M -U -V -W -X -u -f -B -s -D -T -F -: -^ -i -# -O= -I= "
            "-l,-t,-p,-c,-v,-z,-Z:stdout",
        ),
        "zip": _given(
            "zip",
            "-T:! -TT=! --unzip-command,--test-command=! --test:! -m,--move:remove -b,--temp-path=into "
            "-O,--output-file,--out=write -lf,--logfile-path=write -x,-i,-n,-t,-tt,-P,-s,-Z,-ws= -r,--recurse-paths "
            "-R -q,--quiet -j,--junk-paths -# -u,--update -d,--delete -f,--freshen -y,--symlinks -X -D -e -v -A -c -z "
            "-g -l -ll -o -S -w -@ -F -FF -fd -fz -k -J -nw -sf -so",
        ),
        "7z 7za 7zr 7zz": _given("sevenzip", "-o=into", risky=r"-sdel.*"),
        "cpio": _given(
            "cpio",
            "-i,--extract:extract -o,--create -p,--pass-through:extract -F,--file=archive --rsh-command=! "
            "-O=archive+write -I=archive -D,--directory=into -R= -C= -H= -E= -M=",
        ),
        "jar": _given("jar", "-C=into"),
        "basename dirname du df file ls dir vdir stat readlink realpath pathchk cksum sum md5sum sha1sum sha224sum "
        "sha256sum sha384sum sha512sum b2sum cmp sync lsblk mountpoint namei lsattr getfacl which "
        "whereis type": Program(),
        "mktemp": _given("mktemp", "-p,--tmpdir=into --suffix=suffix -d -u -q -t"),
        "tree": Program(options="-o=write -R:! -L= -P= -I= --filelimit= --charset= -H= -T="),
    }
)
