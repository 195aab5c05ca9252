"""Shells, interpreters, programs with a language of their own, and those that start the program behind them."""

from __future__ import annotations

from policy.programs.row import Program, rows

_ENV = "-u,--unset=unset -0,--null"

ROWS = rows(
    {
        "time": Program("behind", options="-p", operands="program", stops=True, one_option=True),
        # Not `-i`: without PATH a shell looks where it was built to, which may be the working directory.
        "env": Program("behind", options=_ENV, operands="set program", stops=True),
        "nice": Program("behind", options="-n,--adjustment= -#", operands="program", stops=True),
        "setsid": Program("behind", options="-f,--fork -w,--wait -c,--ctty", operands="program", stops=True),
        "stdbuf": Program("behind", options="-i,--input= -o,--output= -e,--error=", operands="program", stops=True),
        "timeout": Program(
            "behind",
            options="--foreground --preserve-status -v,--verbose -k,--kill-after= -s,--signal=",
            operands="skip program",
            stops=True,
        ),
        "sudo": Program(
            "behind",
            options="-n,--non-interactive -S,--stdin -H -b -u,--user= -g,--group= -p,--prompt=",
            operands="set program",
            stops=True,
        ),
        "doas": Program("behind", options="-n -u=", operands="program", stops=True),
        "command": Program("behind", options="-p -v,-V:asks", operands="program", stops=True),
        "ionice": Program("behind", options="-t,--ignore -c,--class= -n,--classdata=", operands="program", stops=True),
        "exec": Program("behind", operands="program", stops=True, one_option=True),
        "nohup builtin noglob nocorrect": Program("behind", operands="program", stops=True),
        "ccache sccache distcc icecc": Program("behind", options="-s,--show-stats", operands="program", stops=True),
        "valgrind": Program(
            "behind",
            options="-q,--quiet -v,--verbose --tool= --leak-check= --track-origins= --error-exitcode= "
            "--num-callers= "
            "--show-leak-kinds= --show-reachable= --suppressions= --gen-suppressions= --trace-children= "
            "--errors-for-leak-kinds= "
            "--undef-value-errors= --vgdb= --read-var-info= --xml= --child-silent-after-fork= --max-stackframe= "
            "--keep-stacktraces= "
            "--log-file=write --xml-file=write --callgrind-out-file=write --massif-out-file=write "
            "--cachegrind-out-file=write "
            "--dump-instr= --collect-jumps= --instr-atstart= --cache-sim= --branch-sim= --time-unit= --fair-sched=",
            operands="program",
            stops=True,
        ),
        "xvfb-run": Program(
            "behind",
            options="-a,--auto-servernum -l,--listen-tcp -e,--error-file= -f,--auth-file= "
            "-n,--server-num= -p,--xauth-protocol= "
            "-s,--server-args= -w,--wait=",
            operands="program",
            stops=True,
        ),
        "taskset": Program("behind", options="-c,--cpu-list", operands="skip program", stops=True),
        "xargs": Program(
            "behind",
            options="-0,--null -r,--no-run-if-empty -t,--verbose -x,--exit -o -n,--max-args= -P,--max-procs= -L= "
            "-d,--delimiter= "
            "-s,--max-chars= -E= -a,--arg-file= -I=marker --replace?marker --max-lines? --eof?",
            operands="program input",
            stops=True,
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
        "vim.basic vim.nox "
        "vim.gtk vim.athena vimdiff rvim rview gvim joe jed micro zless zmore bzless bzmore xzless xzmore lzless "
        "lzmore pg tig "
        "lazygit gitui gitk crictl ctr buildah jrunscript cpan expect": Program("language"),
        "telnet ftp lftp ncftp mail mailx mutt ssh-copy-id": Program("language", network=True),
        "smbclient": Program("language"),
        # A session of its own, with a policy of its own, and answers to open questions.
        "agent-host": Program("language"),
        # What stands somewhere in their arguments is started; it is not looked for.
        "rename prename file-rename perl-rename mlr erb escript sage watch parallel flock script su runuser "
        "pkexec chroot "
        "unshare nsenter strace ltrace busybox toybox start-stop-daemon systemd-run screen tmux at batch crontab "
        "unbuffer entr "
        "fakeroot firejail bwrap run-parts proot setarch linux32 linux64 prlimit chrt numactl catchsegv "
        "dbus-run-session sg newgrp "
        "lesspipe rlwrap launchctl wsl cmd cmd.exe logsave sudoedit run-mailcap xdotool cpulimit ssh-agent "
        "sshpass chronic ifne pee "
        "mispipe zrun lckdo vipe vidir setpriv capsh choom uclampset coresched schedtool eatmydata faketime "
        "datefudge fakechroot "
        "cgexec trickle tsocks torsocks torify proxychains proxychains4 gpg-agent dbus-launch startx xinit xterm "
        "uxterm urxvt rxvt "
        "st gnome-terminal konsole alacritty kitty x-terminal-emulator dtach abduco zellij byobu lxc-attach runc "
        "crun flatpak-spawn "
        "toolbox distrobox distrobox-enter guix systemd-cat systemd-inhibit systemd-nspawn machinectl coredumpctl "
        "daemonize daemon "
        "run-one solo supervisord runsv chpst setuidgid envdir envuidgid softlimit setlock pgrphack fghack tini "
        "dumb-init su-exec "
        "gosu catatonit execlineb sudo-rs please run0 dzdo pfexec wine wine64 box64 mpirun mpiexec srun salloc "
        "bsub uftrace heaptrack "
        "rr nsys ncu nvprof bear scan-build intercept-build compiledb libtool aws-vault chamber op doppler "
        "infisical envconsul sops "
        "fzf sk i386 x86_64 uname26 runcon reflex modd air compiledaemon gow rtx hx unshar radare2 r2 rizin drgn "
        "bpftrace rmt "
        "powershell powershell.exe pwsh pwsh.exe lldb perf": Program("somewhere"),
        "gdb gdb-multiarch": Program(
            options="-batch,--batch -q,-quiet,--quiet -nx,--nx -nh,--nh -n -ex,--ex,-eval-command=command "
            "-iex=command -args,--args:args "
            "-return-child-result,--return-child-result",
            operands="gdb",
            stops=True,
        ),
        "sshfs socat nc ncat netcat rsh mosh autossh nc.openbsd nc.traditional": Program("somewhere", network=True),
    }
)
