"""Programs with a row in policy (`row` describes the format): the rows by program name, and the row of a spelled name.

Programs that read, change, copy, pack and find files are in `row`. Here are those that run code (shells, interpreters,
build tools, package managers and runners of packaged programs), those that reach another machine, Windows' programs by
the full names of PowerShell's aliases, and version control. Git may run programs named by its configuration; editors
are not judged: RunCommand sets one that refuses to start (`tool_runtime.platform.environment`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from policy import strip_g, words
from policy.programs.row import FILE_ROWS, Program, rows

_ELSEWHERE = "programs in a container or on another machine"
_CURL = (
    "-o,--output=output --output-dir=directory -O,--remote-name:by-url --remote-name-all:by-url "
    "-J,--remote-header-name:by-server -K,--config=! --engine=! -D,--dump-header=write -c,--cookie-jar=write "
    "--trace=write --trace-ascii=write --stderr=write --hsts=write --alt-svc=write --libcurl=write --etag-save=write "
    "-T,--upload-file=read+upload -E,--cert=read --key=read --cacert=read --capath= --netrc-file=read "
    "--etag-compare=read --proxy-cert=read --proxy-key=read --proxy-cacert=read --unix-socket=read "
    "--abstract-unix-socket= --crlfile=read --ssl-sessions=write -b,--cookie=cookie -d,--data,--data-ascii=data "
    "--data-binary=data --data-urlencode=data --json=data --url-query=data -F,--form=data -H,--header=data "
    "--proxy-header=data -w,--write-out=data --variable=data --url=url --expand-output=! --expand-data=! "
    "--proto-default=proto -X,--request= -A,--user-agent= -e,--referer= -u,--user= -U,--proxy-user= -x,--proxy= "
    "-m,--max-time= -C,--continue-at= -r,--range= -y,--speed-time= -Y,--speed-limit= -z,--time-cond= "
    "-t,--telnet-option= -Q,--quote= -P,--ftp-port= -h? --connect-timeout= --retry= --retry-delay= --retry-max-time= "
    "--limit-rate= --max-filesize= --max-redirs= --resolve= --connect-to= --interface= --local-port= --dns-servers= "
    "--ciphers= --tls-max= --proto= --proto-redir= --noproxy= --preproxy= --socks5= --socks5-hostname= --socks4= "
    "--socks4a= --oauth2-bearer= --aws-sigv4= --cert-type= --key-type= --pass= --keepalive-time= --parallel-max= "
    "--rate= --request-target= --expect100-timeout= --doh-url= --form-string= --pinnedpubkey= --create-file-mode= -#"
)
_WGET = (
    "-O,--output-document=output -P,--directory-prefix=directory --content-disposition:by-server "
    "--trust-server-names:by-server -o,--output-file=write -a,--append-output=write --save-cookies=write "
    "--hsts-file=write --rejected-log=write --warc-file=write --warc-tempdir=write --warc-dedup=read "
    "-i,--input-file=read+many --input-metalink=read+many --post-file=read --body-file=read --load-cookies=read "
    "--certificate=read --private-key=read --ca-certificate=read --crl-file=read --pinnedpubkey=read "
    "-r,--recursive:many -m,--mirror:many -p,--page-requisites:many -x,--force-directories:many --metalink-file=many "
    "--use-askpass=! -e,--execute=! --config=! --default-page=page -A,--accept= -R,--reject= -D,--domains= "
    "-I,--include-directories= -X,--exclude-directories= -l,--level= -Q,--quota= -T,--timeout= -t,--tries= "
    "-U,--user-agent= -w,--wait= -B,--base= --header= --method= --body-data= --post-data= --user= --password= "
    "--http-user= --ftp-user= --referer= --limit-rate= --waitretry= --http-password= "
    "--ftp-password= --random-wait --cut-dirs= --secure-protocol= --progress= --dns-timeout= --connect-timeout= "
    "--read-timeout= --bind-address= --prefer-family= --ciphers= --retry-on-http-error= --max-redirect= "
    "--accept-regex= --reject-regex= --regex-type= --ignore-tags= --follow-tags= --report-speed= --local-encoding= "
    "--remote-encoding= --start-pos= --restrict-file-names= --compression= --ca-directory= --random-file= --egd-file="
)
_RUNS = (
    "--help:help --extcmd=! --exec=! --open-files-in-pager?! --upload-pack=! --receive-pack=! "
    "--output=write --config=! --template=! "
)
_SHORT = r"-x.*|-O.*|-u.*|-c.*"
_MESSAGE = "-m,--message=message -F,--file= "
_STRATEGY = "-X,--strategy-option= -S? --gpg-sign? "
_MERGES = r"--str(?!ategy-option|ategy=(?:ort|ours|resolve|recursive|octopus|subtree)$).*"
"""A merge strategy of another name is a program, `git-merge-NAME`."""
_SHORT_STRATEGY = r"-[nqve]*s.*|" + _MERGES
_FILTERS = (
    "--tree-filter=! --env-filter=! --index-filter=! --parent-filter=! --msg-filter=! --commit-filter=! "
    "--tag-name-filter=! --setup=! --subdirectory-filter= -d=into --original= --prune-empty --state-branch= -f,--force"
)


def _wrapper(options: str = "", operands: str = "program", *, one_option: bool = False) -> Program:
    """A program that starts the one after its options; an unknown option ends the reading."""
    return Program("behind", options=options, operands=operands, stops=True, one_option=one_option)


def _one(risky: str = _SHORT, options: str = "", operands: str = "", words: str = "") -> Program:
    """A subcommand that has options which run something."""
    return Program(options=_RUNS + options, risky=risky, operands=operands, words=words)


def _plain(options: str = "", operands: str = "") -> Program:
    """A subcommand without an option that names a program."""
    return Program(options="--help:help --output=write " + options, operands=operands)


_GIT = rows(
    {
        "annotate blame branch cat-file check-ignore count-objects describe for-each-ref fsck gc hash-object ls-files "
        "ls-tree merge-base name-rev prune reflog rev-list rev-parse shortlog show-ref status symbolic-ref "
        "update-index add version": _plain(),
        "commit": _plain(
            _MESSAGE + "-c,-C,--reuse-message,--reedit-message= --author= --date= -t,--template= "
            "--fixup= --squash= --cleanup="
        ),
        "tag": _plain(_MESSAGE + "-u,--local-user="),
        "switch reset": _plain("-b,-B,-c,-C= --orphan= -s,--source=", operands="worktree"),
        "checkout": _plain("-b,-B= --orphan= --", operands="checkout"),
        "restore": _plain("-s,--source= -S,--staged:staged -W,--worktree:worktree", operands="restore"),
        "mv": _plain("-f,--force -k -n,--dry-run -v,--verbose", operands="git mv"),
        "rm": _plain("-r:tree --cached:keep -f,--force -q,--quiet -n,--dry-run", operands="git rm"),
        "clone": Program(
            options="--help:help -u,--upload-pack=! -c,--config=! --template=! --separate-git-dir=! -b,--branch= "
            "-o,--origin= --depth= -j,--jobs= --reference= --filter= --shallow-since= --shallow-exclude= "
            "--recurse-submodules? -q,--quiet -v,--verbose -n,--no-checkout -l,--local -s,--shared -4 -6",
            operands="clone",
        ),
        "check-attr cherry diff-files diff-index range-diff show-branch whatchanged diff-tree": _one(),
        "diff log show": _one(r"-x.*", "-S= -G= -L= -n= -l= -O?"),
        "clean": _one(r"-O.*|-u.*|-c.*", "-e,--exclude= -n,--dry-run:keep -d", "git clean"),
        "notes": _one(options=_MESSAGE),
        "stash": Program(
            options="--help:help " + _MESSAGE,
            operands="worktree",
            stops=True,
            subcommands=(
                ("show", _one(r"-x.*|-O.*|-c.*")),
                ("list", _one(r"-x.*|-c.*")),
                ("*", _plain(_MESSAGE, "worktree")),
            ),
        ),
        "merge": _one(_SHORT + "|" + _SHORT_STRATEGY, _MESSAGE + _STRATEGY, operands="worktree"),
        "pull": _one(_SHORT + "|" + _SHORT_STRATEGY, _STRATEGY + "-j,--jobs= --depth=", operands="pull"),
        "rebase": _one(
            r"-[A-Za-z0-9]*x.*|-O.*|-u.*|-c.*|" + _SHORT_STRATEGY, _STRATEGY + "--onto=", operands="worktree"
        ),
        "cherry-pick": _one(r"-O.*|-u.*|-c.*|" + _MERGES, _STRATEGY + "-m,--mainline=", operands="worktree"),
        "revert": _one(_SHORT + "|" + _MERGES, _STRATEGY + "-m,--mainline=", operands="worktree"),
        "am apply": _one(options="--build-fake-ancestor=! --unsafe-paths:! --directory=into -p=", operands="worktree"),
        "grep": _one(_SHORT + r"|-[A-Za-z0-9]*O.*", "-e= -f= -A= -B= -C= -m="),
        "archive": _one(_SHORT, "-o=write --remote=! --format= --prefix= --add-file=read"),
        "format-patch": _one(
            _SHORT,
            "-o,--output-directory=into --start-number= --suffix= --in-reply-to= "
            "--subject-prefix= -v,--reroll-count= -U? -M? -n -k -N -s -p -q -#",
        ),
        "bundle": _one(operands="skip write skip*"),
        "push": _one(r"-x.*|-O.*|-c.*", "-o,--push-option= --repo=address", operands="address"),
        "fetch ls-remote": _one(options="-j,--jobs= --depth= -o,--server-option=", operands="address"),
        "remote": _one(options="-t= -m=", operands="address"),
        "submodule": _one(
            r"-x.*|-O.*|-c.*",
            "--remote:! -b,--branch= --name= --reference= --depth= -j,--jobs=",
            "submodule",
            "foreach",
        ),
        "worktree": _one(options="-b,-B= --reason= --expire=", operands="git worktree"),
        "checkout-index": _one(r"-x.*", "--prefix=prefix --stage=", "checkout-index"),
        "merge-file": _one(r"-x.*", "-p,--stdout:stdout -L= --marker-size= --diff-algorithm=", "merge-file"),
        "mailinfo": _one(r"-x.*", "--encoding= --quoted-cr=", "write*"),
        "mailsplit": _one(r"-x.*", "-o=into"),
        "interpret-trailers": _one(
            r"-x.*", "--in-place:inplace --trailer= --where= --if-exists= --if-missing=", "in place"
        ),
        "index-pack": _one(r"-x.*", "-o=write --keep?"),
        "fast-export": _one(r"-x.*", "--export-marks=write --import-marks=read --import-marks-if-exists=read"),
        "bugreport diagnose": _one(r"-x.*", "-o,--output-directory=into -s,--suffix= --mode="),
        "pack-objects": _one(r"-x.*", operands="write*"),
        "credential-store": _one(r"-x.*", "--file=write"),
        "sparse-checkout": _one(operands="worktree"),
        "init": _one(
            options="--bare:bare --separate-git-dir=! -b,--initial-branch= --shared? --object-format= --ref-format=",
            operands="init",
        ),
        "filter-branch": Program(options=_FILTERS, operands="worktree"),
        "bisect": Program(
            options="--help:help",
            stops=True,
            words="visualize view",
            operands="worktree",
            subcommands=(("run", _wrapper()),),
        ),
        "config": Program(operands="config"),
        "*": _one(),
    }
)
_ENV = "-u,--unset=unset -0,--null"
_BUILD = "the commands of its build files"
_TASKS = "the commands of its task file"
_LISTED = "the commands that its configuration lists"
_LINES = "the command lines that it is given"
_MACROS = "code that its source names"
_OWN = "what its own language can start"
_SCRIPTS = "the scripts of packages"
_VERSION = "the version of a program that it chooses"
_QUIET = "-q,--quiet,--silent -v,--verbose -y,--yes --no --no-install --offline --frozen --locked --no-sync "
_UV = _QUIET + (
    "--with,-w= --with-editable= --with-requirements= --python,-p= --extra= --all-extras --no-extra= --no-dev --dev "
    "--only-dev --group= --no-group= --only-group= --all-groups --no-default-groups --no-editable --inexact --exact "
    "--isolated --active --no-project --no-config --refresh --reinstall --upgrade,-U --package= --all-packages "
    "--directory= --project= --from= --index= --default-index= --index-url,-i= --extra-index-url= --no-index "
    "--env-file= --no-env-file --module,-m:module --script,-s:module --no-cache,-n --cache-dir= --color= "
    "--no-progress --native-tls --managed-python --no-managed-python --no-python-downloads --prerelease= "
    "--resolution= --link-mode= --exclude-newer= --no-build --no-binary --compile-bytecode --show-resolution "
    "--python-platform= --torch-backend= --constraints,-c= --overrides= --upgrade-package= --refresh-package="
)
_NPX = _QUIET + "-p,--package= --prefer-offline --prefer-online --ignore-existing --workspace,-w= --workspaces --bun -b"
_PIPX = (
    _QUIET + "--spec= --python= --with= --pip-args= --index-url,-i= --no-cache --pypackages --backend= "
    "--system-site-packages --fetch-missing-python --editable,-e"
)
_HATCH = _QUIET + "-e,--env= -p,--project="
_CONDA = _QUIET + "-n,--name= -p,--prefix= --cwd= --no-capture-output --live-stream --dev"


def _runs(options: str) -> Program:
    """The same for a program of a package."""
    return _wrapper(options, "package program")


def _manager(what: str, options: str = "", *, online: str = "", **subcommands: Program) -> Program:
    """A program that starts whatever a file names, and by some of its subcommands the program that they name."""
    return Program("files", what, options, stops=True, subcommands=tuple(subcommands.items()), online=online)


_GLOBAL_UV = (
    _QUIET + "--directory= --project= --no-cache,-n --color= --native-tls --no-config --no-progress "
    "--cache-dir= --python-preference="
)

_ROWS = rows(
    {
        # Programs that reach another machine.
        "curl": Program(options=_CURL, risky=r"-[A-Za-z0-9]*K.*", operands="curl", network=True),
        "wget": Program(options=_WGET, risky=r"-[bdFcqvnNSxrEkKmpHL46]*e.*", operands="wget", network=True),
        "aria2c": Program(risky=r"--on-.*|--conf.*", network=True),
        "axel http https httpie xh tftp ssh-keyscan rlogin rcp croc wormhole ping ping6 traceroute tracepath mtr "
        "masscan hping3 arping dig nslookup host drill whois ntpdate wg-quick ngrok cloudflared sendmail swaks gcloud "
        "gsutil az glab": Program(network=True),
        "lynx links elinks w3m": Program(risky=r"--?(?:cfg|conf|editor|cmd_|eval|o$).*", network=True),
        "unison": Program("files", "programs that its profile names", risky=r"--?(?!version|help).*", network=True),
        "nmap": Program(risky=r"--script.*|--datadir.*", network=True),
        "msmtp": Program("files", _LISTED, risky=r"--passwordeval.*|--file.*|-[A-Za-z0-9]*C.*", network=True),
        "openvpn": Program("files", _LISTED, risky=r"--(?!version|help).*", network=True),
        "tcpdump": Program(options="-w=write", risky=r"-[A-Za-z0-9]*z.*", network=True),
        "ip": Program(risky=r"-b.*|-force", words="netns exec"),
        "ifconfig route netstat ss": Program(),
        "aws": Program(risky=r".*(?:credential_process|cli_pager).*", network=True),
        "restic borg": Program(risky=r"--(?:password-c|rsh|remote-path).*|-o.*"),
        "rclone": Program(
            "files",
            _LISTED,
            risky=r"--(?:password-c|sftp-s|metadata-m|auth-proxy|conf).*|.*-command.*|:?[^:/]*,.*",
            network=True,
        ),
        "yt-dlp youtube-dl": Program(
            options="--exec=! --downloader=! --external-downloader=! --config?! --config-locations=! --netrc-cmd=!",
            network=True,
        ),
        "ssh-keygen": Program(options="-D=! -w=! -f=write -t= -b= -C= -N= -P=", risky=r"-[A-Za-z0-9]*[Dw].*"),
        "ssh-add": Program(risky=r"-[A-Za-z0-9]*[sS].*"),
        "gpg gpg2": Program(
            options="-o,--output=write --photo-viewer=! --exec-path=! --agent-program=! --dirmngr-program=! "
            "--keyserver-options=! --homedir=! --options=! --keyserver= -r,--recipient= -u,--local-user="
        ),
        "bitsadmin certutil invoke-webrequest invoke-restmethod start-bitstransfer test-connection test-netconnection "
        "resolve-dnsname send-mailmessage": Program(network=True),
        "docker podman": Program("files", _ELSEWHERE, online="pull push login search"),
        "kubectl helm": Program("files", _ELSEWHERE, network=True),
        "nerdctl docker-compose podman-compose vagrant multipass lxc ansible ansible-playbook terraform tofu "
        "service systemctl": Program("files", _ELSEWHERE),
        # Version control.
        "git": Program(
            options="-C=directory -c=setting --no-pager -P --no-optional-locks --literal-pathspecs --version "
            "--help:manual",
            operands="git",
            subcommands=tuple(_GIT.items()),
            stops=True,
            online="clone fetch pull push ls-remote send-pack fetch-pack send-email svn p4 request-pull submodule_add "
            "submodule_update remote_update remote_prune remote_show",
        ),
        "hg": Program(
            "files",
            "the commands that its configuration lists",
            risky=r"-[cte].*",
            options="--config=! --command=! --tool=! --remotecmd=! --ssh=! --debugger:!",
        ),
        "svn": Program(
            options="--diff-cmd=! --diff3-cmd=! --merge-cmd=! --editor-cmd=! --config-dir=! --config-option=!",
            risky=r"svn\+.*",
            words="propedit pedit pe",
        ),
        "jj": Program(risky=r"--config.*|--tool.*", words="exec"),
        # Programs that run code.
        "time": _wrapper("-p", one_option=True),
        # Not `-i`: without PATH a shell searches its built-in path, which may include the working directory.
        "env": _wrapper(_ENV, operands="set program"),
        "nice": _wrapper("-n,--adjustment= -#"),
        "setsid": _wrapper("-f,--fork -w,--wait -c,--ctty"),
        "stdbuf": _wrapper("-i,--input= -o,--output= -e,--error="),
        "timeout": _wrapper(
            "--foreground --preserve-status -v,--verbose -k,--kill-after= -s,--signal=", operands="skip program"
        ),
        "sudo": _wrapper(
            "-n,--non-interactive -S,--stdin -H -b -u,--user= -g,--group= -p,--prompt=", operands="set program"
        ),
        "doas": _wrapper("-n -u="),
        "command": _wrapper("-p -v,-V:asks"),
        "ionice": _wrapper("-t,--ignore -c,--class= -n,--classdata="),
        "exec": _wrapper(one_option=True),
        "nohup builtin noglob nocorrect": _wrapper(),
        "ccache sccache distcc icecc": _wrapper("-s,--show-stats"),
        "valgrind": _wrapper(
            "-q,--quiet -v,--verbose --tool= --leak-check= --track-origins= --error-exitcode= --num-callers= "
            "--show-leak-kinds= --show-reachable= --suppressions= --gen-suppressions= --trace-children= "
            "--errors-for-leak-kinds= --undef-value-errors= --vgdb= --read-var-info= --xml= "
            "--child-silent-after-fork= --max-stackframe= --keep-stacktraces= --log-file=write --xml-file=write "
            "--callgrind-out-file=write --massif-out-file=write --cachegrind-out-file=write --dump-instr= "
            "--collect-jumps= --instr-atstart= --cache-sim= --branch-sim= --time-unit= --fair-sched="
        ),
        "xvfb-run": _wrapper(
            "-a,--auto-servernum -l,--listen-tcp -e,--error-file= -f,--auth-file= -n,--server-num= "
            "-p,--xauth-protocol= -s,--server-args= -w,--wait="
        ),
        "taskset": _wrapper("-c,--cpu-list", operands="skip program"),
        "xargs": _wrapper(
            "-0,--null -r,--no-run-if-empty -t,--verbose -x,--exit -o -n,--max-args= -P,--max-procs= -L= "
            "-d,--delimiter= -s,--max-chars= -E= -a,--arg-file= -I=marker --replace?marker --max-lines? --eof?",
            operands="program input",
        ),
        "sh bash dash ash zsh ksh mksh rbash": Program("shell"),
        "fish csh tcsh nu elvish xonsh osh ysh yash": Program("unread shell"),
        "python pythonw pypy py micropython jython graalpy bpython ptpython": Program(
            "code",
            options="-c=code -m=module -W= -X= --check-hash-based-pycs= -b -B -d -E -h -i -I -O -P -q -R "
            "-s -S -u -v -V -x",
            stops=True,
        ),
        "ipython perl ruby node nodejs tsx ts-node php lua luajit rscript julia elixir groovy scala": Program("code"),
        "ssh scp sftp": Program(
            "language",
            risky=r"(?i)(?:-[a-z0-9]*o)?\s*(?:(?:proxy|local|knownhosts)command|(?:pkcs11|securitykey)provider)[\s=].*",
            network=True,
        ),
        "vi vim nvim view ex ed emacs nano pico less more most irb wish tclsh osascript open xdg-open vim.tiny "
        "vim.basic vim.nox vim.gtk vim.athena vimdiff rvim rview gvim joe jed micro zless zmore bzless bzmore xzless "
        "xzmore lzless lzmore pg tig lazygit gitui gitk crictl ctr buildah jrunscript cpan expect": Program("language"),
        "telnet ftp lftp ncftp mail mailx mutt ssh-copy-id": Program("language", network=True),
        "smbclient": Program("language"),
        # A session of its own, with a policy of its own, and answers to open questions.
        "agent-host": Program("language"),
        # They start a program somewhere in their arguments, which is not searched for.
        "rename prename file-rename perl-rename mlr erb escript sage watch parallel flock script su runuser pkexec "
        "chroot unshare nsenter strace ltrace busybox toybox start-stop-daemon systemd-run screen tmux at batch "
        "crontab unbuffer entr fakeroot firejail bwrap run-parts proot setarch linux32 linux64 prlimit chrt numactl "
        "catchsegv dbus-run-session sg newgrp lesspipe rlwrap launchctl wsl cmd cmd.exe logsave sudoedit run-mailcap "
        "xdotool cpulimit ssh-agent sshpass chronic ifne pee mispipe zrun lckdo vipe vidir setpriv capsh choom "
        "uclampset coresched schedtool eatmydata faketime datefudge fakechroot cgexec trickle tsocks torsocks torify "
        "proxychains proxychains4 gpg-agent dbus-launch startx xinit xterm uxterm urxvt rxvt st gnome-terminal "
        "konsole alacritty kitty x-terminal-emulator dtach abduco zellij byobu lxc-attach runc crun flatpak-spawn "
        "toolbox distrobox distrobox-enter guix systemd-cat systemd-inhibit systemd-nspawn machinectl coredumpctl "
        "daemonize daemon run-one solo supervisord runsv chpst setuidgid envdir envuidgid softlimit setlock pgrphack "
        "fghack tini dumb-init su-exec gosu catatonit execlineb sudo-rs please run0 dzdo pfexec wine wine64 box64 "
        "mpirun mpiexec srun salloc bsub uftrace heaptrack rr nsys ncu nvprof bear scan-build intercept-build "
        "compiledb libtool aws-vault chamber op doppler infisical envconsul sops fzf sk i386 x86_64 uname26 runcon "
        "reflex modd air compiledaemon gow rtx hx unshar radare2 r2 rizin drgn bpftrace rmt powershell powershell.exe "
        "pwsh pwsh.exe lldb perf": Program("somewhere"),
        "gdb gdb-multiarch": Program(
            options="-batch,--batch -q,-quiet,--quiet -nx,--nx -nh,--nh -n -ex,--ex,-eval-command=command "
            "-iex=command -args,--args:args -return-child-result,--return-child-result",
            operands="gdb",
            stops=True,
        ),
        "sshfs socat nc ncat netcat rsh mosh autossh nc.openbsd nc.traditional": Program("somewhere", network=True),
        # Build tools and package managers.
        "make gmake bmake mingw32-make nmake ninja samu cmake ctest cpack meson scons waf bazel bazelisk buck pants "
        "gradle gradlew mvn mvnw mvnd ant sbt mill lein bloop stack cabal dune mix rebar3 zig swift msbuild "
        "xcodebuild configure latexmk autoconf autoreconf automake aclocal autom4te autoheader flutter dotnet": Program(
            "files", _BUILD
        ),
        "cargo": Program("files", _BUILD, risky=r"--config.*", online="install fetch update publish search"),
        "go": Program(
            "files",
            _BUILD,
            options="-o=write",
            risky=r"--?(?:toolexec|exec|vettool).*|--?w(?:=.*)?|.*-extld.*|--?gccgoflags.*",
            online="get install",
        ),
        "just task go-task rake thor invoke inv fab doit mage earthly act snakemake nx turbo lerna gulp grunt "
        "npm-run-all run-s run-p foreman honcho overmind hivemind watchman guard bacon moon rails": Program(
            "files", _TASKS
        ),
        "tox nox pre-commit prek lefthook husky lint-staged": Program("files", _LISTED),
        "hyperfine concurrently nodemon pm2 watchexec cross-env cross-env-shell dotenvx": Program("files", _LINES),
        "prove": Program("files", "the tests that it is given", options="-e,--exec=! -P=! --source=!"),
        "strip": Program(options="-o=write", risky=r"--?plugin.*|@.*"),
        "objcopy": Program(
            options="-O= -I= -B= -F= -j= -R= -K= -N= -G= -W= -L=", risky=r"--?plugin.*|@.*", operands="write write"
        ),
        "sqlite psql mysql mariadb dc gnuplot octave r maxima gp duckdb mongo mongosh guile ghci runghc runhaskell "
        "erl racket sbcl clisp clojure clj bb kotlin jshell swipl ocaml iex csi gsi gforth raku nim crystal": Program(
            "files", _OWN
        ),
        "gcc cc c++ g++ clang clang++ cpp gfortran gdc gccgo": Program(
            options="-o=write -MF=write",
            risky=r"-wrapper|--?f?(?:pass-)?plugin.*|-iplugindir.*|-W[alp],.*(?:@|plugin|specs).*|-B.*|--prefix.*|-?-specs.*|@.*"
            r"|-fuse-ld=.*/.*|--ld-path.*|-load|--config.*|--gcc-(?:toolchain|install-dir).*|-ccc-.*",
        ),
        "ld ld.gold ld.bfd ld.lld lld": Program(options="-o=write -Map=write", risky=r"--?plugin.*|@.*"),
        "ar": Program(options="--output=into", risky=r"--?plugin.*|@.*", operands="ar"),
        "nm objdump ranlib size readelf": Program(risky=r"--?plugin.*|@.*"),
        "rustc": Program(
            "files", _MACROS, options="-o=write", risky=r"(?:-[A-Za-z0-9]*C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"
        ),
        "rustdoc": Program(
            "files", _MACROS, risky=r"--te.*|--runtool.*|(?:-[A-Za-z0-9]*C ?|--codegen=)?link(?:er|[-_]arg).*|-Z.*|@.*"
        ),
        "java": Program("code", risky=r"-XX:On.*|-XX:Flags.*|-XX:VMOptionsFile.*|-agent.*|-javaagent.*|@.*"),
        "javac": Program(
            "files",
            "annotation processors on its class path",
            options="-d=into",
            risky=r"-J.*|-?-processor.*|-Xplugin.*|@.*",
        ),
        "ghc": Program("files", _MACROS, options="-o=write", risky=r"-e.*|--interactive|-pgm.*|-F"),
        "bison": Program("files", "the skeleton that its grammar names", options="-o,--output=write --skeleton=! -S=!"),
        "protoc": Program(
            risky=r"--plugin.*|@.*|--(?!(?:cpp|csharp|java|kotlin|objc|php|pyi|python|ruby|rust|descriptor_set)_out)\w+_out.*"
        ),
        "cppcheck": Program(risky=r"--addon.*|--clang.*|--project=.*(?<!\.json)"),
        "clang-tidy clang-query": Program(risky=r"--?load.*"),
        "pylint": Program("files", "code that its configuration names", options="--init-hook=!"),
        "mypy": Program(
            "files", "code that its configuration names", options="--python-executable=! --install-types:!"
        ),
        "virtualenv": Program(options="-p,--python=!", risky=r"-p.*"),
        "gofmt rustfmt clang-format shellcheck shfmt pkg-config cmp gcov ctags": Program(),
        "lcov geninfo genhtml": Program(risky=r"--(?:gcov|rc|conf|demangle|crit|annot|version-).*"),
        "uv": _manager(
            _SCRIPTS,
            _GLOBAL_UV,
            online="pip add sync lock publish tool",
            run=_runs(_UV),
            tool=_manager(_SCRIPTS, run=_runs(_UV)),
        ),
        "uvx": _runs(_UV),
        "npx bunx": _runs(_NPX),
        "poetry": _manager(
            _SCRIPTS,
            _QUIET + "-n,--no-interaction -C,--directory= -P,--project= --no-ansi --no-plugins --no-cache",
            online="add install update publish lock",
            run=_runs(_QUIET),
        ),
        "pipenv": _manager(_SCRIPTS, _QUIET, run=_runs(_QUIET + "--system")),
        "pdm": _manager(
            _SCRIPTS,
            _QUIET + "-p,--project=",
            run=_runs(_QUIET + "-p,--project= -s,--site-packages -g,--global --venv= --env-file="),
        ),
        "hatch": _manager(_SCRIPTS, _HATCH, run=_runs(_QUIET)),
        "rye": _manager(_SCRIPTS, _QUIET, run=_runs(_QUIET + "--pyproject=")),
        "bundle": _manager(_SCRIPTS, _QUIET, exec=_runs(_QUIET + "--keep-file-descriptors --gemfile=")),
        "npm": _manager(
            _SCRIPTS,
            _QUIET + "--script-shell=! --node-options=! --git=! --browser=! --viewer=! --editor=! --shell=! "
            "--userconfig=! --globalconfig=! --git-tag-version --no-git-tag-version --global -g --prefix=into -C=into",
            online="install i ci add update publish view search audit",
            exec=_runs(_NPX),
        ),
        "pnpm": _manager(
            _SCRIPTS,
            _QUIET + "-C,--dir= -r,--recursive --filter,-F=",
            online="install i add update publish dlx",
            exec=_runs(_QUIET),
            dlx=_runs(_NPX),
        ),
        "yarn": _manager(
            _SCRIPTS, _QUIET + "--cwd=", online="install add upgrade publish dlx", exec=_runs(_QUIET), dlx=_runs(_NPX)
        ),
        "pipx": _manager(_SCRIPTS, _QUIET, run=_runs(_PIPX)),
        "conda mamba micromamba": _manager(_SCRIPTS, _QUIET, run=_runs(_CONDA)),
        "pip": Program("files", _SCRIPTS, online="install download index search"),
        "gem": Program("files", _SCRIPTS, online="install update push fetch"),
        "apt": Program("files", _SCRIPTS, online="install update upgrade"),
        "apt-get": Program("files", _SCRIPTS, online="install update upgrade download"),
        "brew": Program("files", _SCRIPTS, online="install update upgrade fetch"),
        "gh": Program("files", _SCRIPTS, network=True),
        "dnf yum apk pacman zypper snap flatpak dpkg rpm bun deno composer nix nix-shell nix-build "
        "nix-env devenv": Program("files", _SCRIPTS),
        "mise": _manager(_VERSION, _QUIET, exec=_runs(_QUIET)),
        "direnv": _manager(_VERSION, exec=_wrapper(operands="skip program")),
        "dotenv": _manager(
            _VERSION,
            _QUIET + "-f,--file= -e,--export -q,--quote= -i,--interpolate",
            run=_runs(_QUIET + "--override --no-override"),
        ),
        "asdf rbenv pyenv nodenv volta fnm nvm corepack rustup": Program("files", _VERSION),
    }
)
PROGRAMS: dict[str, Program] = {**FILE_ROWS, **_ROWS}
_VERSION_CHARS = "0123456789."
_CROSS_TOOL = re.compile(
    r"^[a-z0-9_]+(?:-[a-z0-9_]+){1,3}-(?=(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|gfortran|ld|ar|nm|strip)$)"
)
_INTERPRETER_BUILD = re.compile(r"(python|pypy|perl|ruby|php|lua)w?[0-9][0-9.]*(?:[a-z]{1,2}|[-_].+)|(python)-dbg")
"""Debug and other builds of interpreters: `python3.12t`, `python3-dbg`, `perl5.36-x86_64-linux-gnu`."""
_OTHER_NAMES = {"php-cgi": "php", "phpdbg": "php", "texlua": "lua"}


@lru_cache(maxsize=256)
def base_name(program: str) -> str:
    """A program's name without its directory, in lower case, and without the `g` that some systems put in front."""
    return strip_g(program.rsplit("/", 1)[-1].casefold())


@lru_cache(maxsize=256)
def family_of(base: str) -> str:
    """The name that the table has for a base name: as it is, or without version and the machine it compiles for."""
    if base in PROGRAMS:
        return base
    build = _INTERPRETER_BUILD.fullmatch(base)
    family = (build[1] or build[2]) if build else base.rstrip(_VERSION_CHARS).removesuffix("-") or base
    family = _CROSS_TOOL.sub("", family)
    return _OTHER_NAMES.get(family, family)


def program_named(base: str) -> Program | None:
    """The row of a program by its base name; None for an unknown one."""
    if base.startswith("ld-"):  # the dynamic loader, whatever its version
        return Program("somewhere")
    return PROGRAMS.get(family_of(base))


def is_known(program: str) -> bool:
    """True for a program that has a row, and for a builtin."""
    base = base_name(program)
    return base in _BUILTINS or program_named(base) is not None


def what_it_starts(program: str) -> str | None:
    """Describe what allowing a program also allows: the code and the programs that it starts by itself. None for one
    that starts none, or whose line names the started program (`env`, `xargs`)."""
    base = base_name(program)
    if base in {"eval", "source", "."}:
        return "any command line"
    row = program_named(base)
    if row is None:
        return None if is_known(program) else "it is not known here, and may start anything"
    if base in {"npx", "uvx", "bunx"}:
        return "any program"
    return row.what or _STARTS.get(row.starts)


_STARTS = {
    "shell": "any command line",
    "unread shell": "any command line",
    "code": "any code",
    "language": "any program",
}
_BUILTINS = words(
    "alias eval source . bg bind break builtin caller cd command compgen complete continue declare dirs disown "
    "enable exec exit export fc fg getopts hash history jobs let local logout mapfile popd pushd pwd read readarray "
    "readonly return set shift shopt suspend test times trap type typeset ulimit umask unalias unset wait : ["
)
