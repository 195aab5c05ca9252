"""Programs that read text and write it to their output, and those of a machine's state."""

from __future__ import annotations

from policy.programs.row import Program, rows

_PATTERNS = (
    "-e,--regexp= -f,--file= -m,--max-count= -A,--after-context= -B,--before-context= -C,--context= "
    "--include= --exclude= "
)

ROWS = rows(
    {
        "cat comm column expand fold fmt head tail join nl od paste pr rev seq tac tr tsort unexpand wc yes "
        "hexdump strings cut "
        "colrm look numfmt jq base64 base32 basenc factor expr true false sleep echo printf test [ date cal arch "
        "free getconf "
        "groups hostname id kill killall pkill pgrep locale lscpu nproc printenv ps tty uname "
        "uptime users who whoami w "
        "logname hostid lsof ldd pwd cd dirs : break continue exit return shift umask getopt tput clear reset "
        "true dmesg vmstat "
        "iostat last finger zcat bzcat xzcat lzcat lz4cat ptx ugrep-indexer": Program(),
        "date": Program(options="-s,--set=! -d,--date= -f,--file= -r,--reference= -I?", risky=r"-s.*"),
        "jobs": Program(options="-x:!"),
        "test [": Program(operands="test"),
        "printf": Program(operands="printf"),
        "grep egrep fgrep zgrep bzgrep xzgrep": Program(options=_PATTERNS),
        "rg": Program(
            options=_PATTERNS + "--pre=! --hostname-bin=! -z,--search-zip:! -g,--glob= -t,--type= -T,--type-not= "
            "-M= -r,--replace= -j= "
            "--pre-glob= -E= -d=",
            risky=r"-[A-Za-z0-9.]*z.*",
        ),
        "ag ack": Program(options="--pager=!"),
        "ugrep ug": Program(risky=r"--(?:pag|filter|vi).*"),
        "bat batcat": Program(options="--pager=! --diff:!"),
        "sort": Program(
            options="-o,--output=write --compress-program=! -k,--key= -t,--field-separator= -S,--buffer-size= "
            "-T,--temporary-directory= --parallel= --batch-size= --files0-from= --random-source= --sort= --check?"
        ),
        "uniq": Program(
            options="-c,--count -d,--repeated -D --all-repeated? -f,--skip-fields= --group? -i,--ignore-case "
            "-s,--skip-chars= -u,--unique -z,--zero-terminated -w,--check-chars= -# --help --version",
            operands="skip write",
        ),
        "xxd": Program(
            options="-a,-autoskip -b,-bits -c,-cols= -C,-capitalize -d -E,-EBCDIC -e -g,-groupsize= -h,-help "
            "-i,-include "
            "-l,-len= -n,-name= -o= -p,-ps,-postscript,-plain -r,-revert -R= -s,-seek= -u -v,-version -t --help",
            operands="skip write",
        ),
        "tsort": Program(),
        "split": Program(
            options="-a,--suffix-length= --additional-suffix= -b,--bytes= -C,--line-bytes= -d --numeric-suffixes? "
            "-x --hex-suffixes? "
            "-e,--elide-empty-files --filter=! -l,--lines= -n,--number= -t,--separator= -u,--unbuffered --verbose -# "
            "--help --version",
            operands="split",
        ),
        "csplit": Program(
            options="-b,--suffix-format= -f,--prefix=prefix -k,--keep-files --suppress-matched -n,--digits= "
            "-s,-q,--quiet,--silent "
            "-z,--elide-empty-files --help --version",
            operands="csplit",
        ),
        "shuf": Program(options="-o,--output=write -n,--head-count= -i,--input-range= --random-source="),
        "iconv": Program(options="-o,--output=write -f,--from-code= -t,--to-code="),
        "sed": Program(
            options="-n,--quiet,--silent -E,-r,--regexp-extended -s,--separate -u,--unbuffered -z,--null-data --posix "
            "-e,--expression=script -i?suffix+inplace --in-place?suffix+inplace",
            operands="sed",
        ),
        "awk gawk mawk nawk original-awk bwk": Program(operands="awk"),
        "yq": Program(
            options="-i,--inplace:inplace -I,--indent= -o,--output-format= -p,--input-format= --from-file=",
            operands="yq",
        ),
        "patch": Program(
            options="-o,--output=write -r,--reject-file=write -i,--input= -d,--directory=into -e,--ed:! "
            "-g,--get=! -b,--backup:backup "
            "-z,--suffix=suffix -B,--prefix=prefix -Y,--basename-prefix=prefix -V,--version-control= -p,--strip= "
            "-F,--fuzz= -D,--ifdef= "
            "-R,--reverse -N,--forward -E,--remove-empty-files -f,--force -t,--batch -s,--quiet,--silent "
            "-u,--unified -c,--context -n,--normal "
            "-l,--ignore-whitespace -T,--set-time -Z,--set-utc --dry-run:stdout --merge? --verbose --binary "
            "--posix -v,--version "
            "--backup-if-mismatch --no-backup-if-mismatch --read-only= --reject-format= --follow-symlinks "
            "--quoting-style= --help",
            operands="patch",
        ),
        "diff sdiff diff3": Program(options="--diff-program=! -o,--output=write"),
        "man": Program(
            options="-P,--pager=! -H,--html:! -X,--gxditview:! -C,--config-file=! -L,--locale=!",
            risky=r"-[A-Za-z0-9]*[PHLCX].*",
        ),
        "exiftool": Program(risky=r"-if.*|-config.*|-p|-@"),
        "pandoc": Program(
            options="-o,--output=write --filter=! --lua-filter=! -d,--defaults=! --pdf-engine=! --data-dir=! -F=! -L=!",
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
        "latex pdflatex xelatex lualatex tex pdftex xetex luatex": Program(risky=r"--?(?:sh|en|write18).*"),
        "cloc": Program(options="--extract-with=! --vcs=!"),
        "m4": Program("language"),
    }
)
