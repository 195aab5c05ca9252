"""Programs that reach another machine, those of Windows by the names that PowerShell's aliases stand for; and version
control. What its configuration names, git may run; an editor is no matter of the line: RunCommand names one that
refuses (`tool_runtime.platform.environment`)."""

from __future__ import annotations

from policy.programs.row import Program, rows

_ELSEWHERE = "programs in a container or on another machine"
_CURL = (
    "-o,--output=output --output-dir=directory -O,--remote-name:by-url --remote-name-all:by-url "
    "-J,--remote-header-name:by-server "
    "-K,--config=! --engine=! -D,--dump-header=write -c,--cookie-jar=write --trace=write --trace-ascii=write "
    "--stderr=write "
    "--hsts=write --alt-svc=write --libcurl=write --etag-save=write "
    "-T,--upload-file=read+upload "
    "-E,--cert=read --key=read --cacert=read --capath= --netrc-file=read --etag-compare=read "
    "--proxy-cert=read --proxy-key=read --proxy-cacert=read --unix-socket=read --abstract-unix-socket= "
    "--crlfile=read --ssl-sessions=write "
    "-b,--cookie=cookie -d,--data,--data-ascii=data --data-binary=data --data-urlencode=data --json=data "
    "--url-query=data "
    "-F,--form=data -H,--header=data --proxy-header=data -w,--write-out=data --variable=data --url=url "
    "--expand-output=! --expand-data=! "
    "--proto-default=proto -X,--request= -A,--user-agent= -e,--referer= -u,--user= -U,--proxy-user= "
    "-x,--proxy= -m,--max-time= "
    "-C,--continue-at= -r,--range= -y,--speed-time= -Y,--speed-limit= -z,--time-cond= -t,--telnet-option= "
    "-Q,--quote= -P,--ftp-port= "
    "-h? --connect-timeout= --retry= --retry-delay= --retry-max-time= --limit-rate= --max-filesize= "
    "--max-redirs= --resolve= "
    "--connect-to= --interface= --local-port= --dns-servers= --ciphers= --tls-max= --proto= --proto-redir= "
    "--noproxy= --preproxy= "
    "--socks5= --socks5-hostname= --socks4= --socks4a= --oauth2-bearer= --aws-sigv4= --cert-type= --key-type= "
    "--pass= --keepalive-time= "
    "--parallel-max= --rate= --request-target= --expect100-timeout= --doh-url= --form-string= --pinnedpubkey= "
    "--create-file-mode= "
    "-#"
)
_WGET = (
    "-O,--output-document=output -P,--directory-prefix=directory --content-disposition:by-server "
    "--trust-server-names:by-server "
    "-o,--output-file=write -a,--append-output=write --save-cookies=write --hsts-file=write "
    "--rejected-log=write --warc-file=write "
    "--warc-tempdir=write --warc-dedup=read -i,--input-file=read+many --input-metalink=read+many "
    "--post-file=read --body-file=read "
    "--load-cookies=read --certificate=read --private-key=read --ca-certificate=read --crl-file=read "
    "--pinnedpubkey=read "
    "-r,--recursive:many -m,--mirror:many -p,--page-requisites:many -x,--force-directories:many --metalink-file=many "
    "--use-askpass=! -e,--execute=! --config=! --default-page=page "
    "-A,--accept= -R,--reject= -D,--domains= -I,--include-directories= -X,--exclude-directories= -l,--level= "
    "-Q,--quota= -T,--timeout= "
    "-t,--tries= -U,--user-agent= -w,--wait= -B,--base= --header= --method= --body-data= --post-data= --user= "
    "--password= "
    "--http-user= --ftp-user= --referer= --limit-rate= --waitretry= --http-password= "
    "--ftp-password= "
    "--random-wait --cut-dirs= "
    "--secure-protocol= --progress= --dns-timeout= --connect-timeout= --read-timeout= --bind-address= "
    "--prefer-family= --ciphers= "
    "--retry-on-http-error= --max-redirect= --accept-regex= --reject-regex= --regex-type= --ignore-tags= "
    "--follow-tags= --report-speed= "
    "--local-encoding= --remote-encoding= --start-pos= --restrict-file-names= --compression= --ca-directory= "
    "--random-file= --egd-file="
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
    "--tag-name-filter=! "
    "--setup=! --subdirectory-filter= -d=into --original= --prune-empty --state-branch= -f,--force"
)


def _one(risky: str = _SHORT, options: str = "", operands: str = "", words: str = "") -> Program:
    """A subcommand that has options which run something."""
    return Program(options=_RUNS + options, risky=risky, operands=operands, words=words)


def _plain(options: str = "", operands: str = "") -> Program:
    """A subcommand without an option that names a program."""
    return Program(options="--help:help " + options, operands=operands)


_GIT = rows(
    {
        "annotate blame branch cat-file check-ignore count-objects describe for-each-ref fsck gc hash-object ls-files "
        "ls-tree merge-base name-rev prune reflog rev-list rev-parse shortlog show-ref status symbolic-ref "
        "update-index "
        "add version": _plain(),
        "commit": _plain(
            _MESSAGE + "-c,-C,--reuse-message,--reedit-message= --author= --date= -t,--template= "
            "--fixup= --squash= --cleanup="
        ),
        "tag": _plain(_MESSAGE + "-u,--local-user="),
        "switch reset": _plain("-b,-B,-c,-C= --orphan= -s,--source=", operands="worktree"),
        "checkout": _plain("-b,-B= --orphan= --", operands="checkout"),
        "restore": _plain("-s,--source= -S,--staged -W,--worktree", operands="restore"),
        "mv": _plain("-f,--force -k -n,--dry-run -v,--verbose", operands="git mv"),
        "rm": _plain("-r:tree --cached:keep -f,--force -q,--quiet -n,--dry-run", operands="git rm"),
        "clone": Program(
            options="--help:help -u,--upload-pack=! -c,--config=! --template=! --separate-git-dir=! "
            "-b,--branch= -o,--origin= --depth= "
            "-j,--jobs= --reference= --filter= --shallow-since= --shallow-exclude= --recurse-submodules? "
            "-q,--quiet -v,--verbose "
            "-n,--no-checkout -l,--local -s,--shared -4 -6",
            operands="clone",
        ),
        "check-attr cherry diff-files diff-index range-diff show-branch whatchanged diff-tree": _one(),
        "diff log show": _one(r"-x.*", "-S= -G= -L= -n= -l= -O?"),
        "clean": _one(r"-O.*|-u.*|-c.*", "-e,--exclude="),
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
        "am apply": _one(options="--build-fake-ancestor=! --unsafe-paths:! --directory= -p=", operands="worktree"),
        "grep": _one(_SHORT + r"|-[A-Za-z0-9]*O.*", "-e= -f= -A= -B= -C= -m="),
        "archive": _one(_SHORT, "-o=write --remote=! --format= --prefix= --add-file="),
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
        "worktree": _one(options="-b,-B=", operands="worktree"),
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
            subcommands=(("run", Program("behind", operands="program", stops=True)),),
        ),
        "config": Program(operands="config"),
        "*": _one(),
    }
)

ROWS = rows(
    {
        "curl": Program(options=_CURL, risky=r"-[A-Za-z0-9]*K.*", operands="curl", network=True),
        "wget": Program(options=_WGET, risky=r"-[bdFcqvnNSxrEkKmpHL46]*e.*", operands="wget", network=True),
        "aria2c": Program(risky=r"--on-.*|--conf.*", network=True),
        "axel http https httpie xh lynx links elinks w3m tftp ssh-keyscan rlogin rcp unison croc wormhole ping "
        "ping6 traceroute "
        "tracepath mtr nmap masscan hping3 arping dig nslookup host drill whois ntpdate openvpn wg-quick ngrok "
        "cloudflared "
        "sendmail msmtp swaks gcloud gsutil az glab": Program(network=True),
        "tcpdump": Program(options="-w=write", risky=r"-[A-Za-z0-9]*z.*", network=True),
        "ip": Program(risky=r"-b.*|-force", words="netns exec"),
        "ifconfig route netstat ss": Program(),
        "aws": Program(risky=r".*(?:credential_process|cli_pager).*", network=True),
        "restic borg": Program(risky=r"--(?:password-c|rsh|remote-path).*|-o.*"),
        "rclone": Program(risky=r"--(?:password-c|rsh|remote-path).*|-o.*", network=True),
        "yt-dlp youtube-dl": Program(
            options="--exec=! --downloader=! --external-downloader=! --config?! --config-locations=! --netrc-cmd=!",
            network=True,
        ),
        "ssh-keygen": Program(options="-D=! -w=! -f=write -t= -b= -C= -N= -P=", risky=r"-[A-Za-z0-9]*[Dw].*"),
        "ssh-add": Program(risky=r"-[A-Za-z0-9]*[sS].*"),
        "gpg gpg2": Program(
            options="-o,--output=write --photo-viewer=! --exec-path=! --agent-program=! --dirmngr-program=! "
            "--keyserver-options=! "
            "--homedir=! --options=! --keyserver= -r,--recipient= -u,--local-user="
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
    }
)
