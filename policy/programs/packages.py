"""Package managers, and what runs a program of a package."""

from __future__ import annotations

from policy.programs.row import Program, rows

_SCRIPTS = "the scripts of packages"
_VERSION = "the version of a program that it chooses"
_QUIET = "-q,--quiet,--silent -v,--verbose -y,--yes --no --no-install --offline --frozen --locked --no-sync "
_UV = _QUIET + (
    "--with,-w= --with-editable= --with-requirements= --python,-p= --extra= --all-extras --no-extra= --no-dev "
    "--dev --only-dev "
    "--group= --no-group= --only-group= --all-groups --no-default-groups --no-editable --inexact --exact "
    "--isolated --active "
    "--no-project --no-config --refresh --reinstall --upgrade,-U --package= --all-packages --directory= "
    "--project= --from= "
    "--index= --default-index= --index-url,-i= --extra-index-url= --no-index --env-file= --no-env-file "
    "--module,-m:module "
    "--script,-s:module --no-cache,-n --cache-dir= --color= --no-progress --native-tls --managed-python "
    "--no-managed-python "
    "--no-python-downloads --prerelease= --resolution= --link-mode= --exclude-newer= --no-build --no-binary "
    "--compile-bytecode "
    "--show-resolution --python-platform= --torch-backend= --constraints,-c= --overrides= --upgrade-package= "
    "--refresh-package="
)
_NPX = _QUIET + "-p,--package= --prefer-offline --prefer-online --ignore-existing --workspace,-w= --workspaces --bun -b"
_PIPX = (
    _QUIET + "--spec= --python= --with= --pip-args= --index-url,-i= --no-cache --pypackages --backend= "
    "--system-site-packages --fetch-missing-python --editable,-e"
)
_HATCH = _QUIET + "-e,--env= -p,--project="
_CONDA = _QUIET + "-n,--name= -p,--prefix= --cwd= --no-capture-output --live-stream --dev"


def _runs(options: str) -> Program:
    """A program that starts the one after its options; an option that it does not know ends the reading."""
    return Program("behind", options=options, operands="package program", stops=True)


_GLOBAL_UV = (
    _QUIET + "--directory= --project= --no-cache,-n --color= --native-tls --no-config --no-progress "
    "--cache-dir= --python-preference="
)

ROWS = rows(
    {
        "uv": Program(
            "files",
            _SCRIPTS,
            options=_GLOBAL_UV,
            stops=True,
            online="pip add sync lock publish tool",
            subcommands=(
                ("run", _runs(_UV)),
                ("tool", Program("files", _SCRIPTS, stops=True, subcommands=(("run", _runs(_UV)),))),
            ),
        ),
        "uvx": _runs(_UV),
        "npx bunx": _runs(_NPX),
        "poetry": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "-n,--no-interaction -C,--directory= -P,--project= --no-ansi --no-plugins --no-cache",
            stops=True,
            online="add install update publish lock",
            subcommands=(("run", _runs(_QUIET)),),
        ),
        "pipenv": Program(
            "files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_QUIET + "--system")),)
        ),
        "pdm": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "-p,--project=",
            stops=True,
            subcommands=(("run", _runs(_QUIET + "-p,--project= -s,--site-packages -g,--global --venv= --env-file=")),),
        ),
        "hatch": Program("files", _SCRIPTS, options=_HATCH, stops=True, subcommands=(("run", _runs(_QUIET)),)),
        "rye": Program(
            "files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_QUIET + "--pyproject=")),)
        ),
        "bundle": Program(
            "files",
            _SCRIPTS,
            options=_QUIET,
            stops=True,
            subcommands=(("exec", _runs(_QUIET + "--keep-file-descriptors --gemfile=")),),
        ),
        "npm": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "--script-shell=! --node-options=! --git=! --browser=! --viewer=! "
            "--editor=! --shell=! "
            "--userconfig=! --globalconfig=! --git-tag-version --no-git-tag-version --global -g --prefix=into -C=into",
            stops=True,
            online="install i ci add update publish view search audit",
            subcommands=(("exec", _runs(_NPX)),),
        ),
        "pnpm": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "-C,--dir= -r,--recursive --filter,-F=",
            stops=True,
            online="install i add update publish dlx",
            subcommands=(("exec", _runs(_QUIET)), ("dlx", _runs(_NPX))),
        ),
        "yarn": Program(
            "files",
            _SCRIPTS,
            options=_QUIET + "--cwd=",
            stops=True,
            online="install add upgrade publish dlx",
            subcommands=(("exec", _runs(_QUIET)), ("dlx", _runs(_NPX))),
        ),
        "pipx": Program("files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_PIPX)),)),
        "conda mamba micromamba": Program(
            "files", _SCRIPTS, options=_QUIET, stops=True, subcommands=(("run", _runs(_CONDA)),)
        ),
        "pip": Program("files", _SCRIPTS, online="install download index search"),
        "gem": Program("files", _SCRIPTS, online="install update push fetch"),
        "apt": Program("files", _SCRIPTS, online="install update upgrade"),
        "apt-get": Program("files", _SCRIPTS, online="install update upgrade download"),
        "brew": Program("files", _SCRIPTS, online="install update upgrade fetch"),
        "gh": Program("files", _SCRIPTS, network=True),
        "dnf yum apk pacman zypper snap flatpak dpkg rpm bun deno composer nix nix-shell nix-build "
        "nix-env devenv": Program("files", _SCRIPTS),
        "mise": Program("files", _VERSION, options=_QUIET, stops=True, subcommands=(("exec", _runs(_QUIET)),)),
        "direnv": Program(
            "files",
            _VERSION,
            stops=True,
            subcommands=(("exec", Program("behind", operands="skip program", stops=True)),),
        ),
        "dotenv": Program(
            "files",
            _VERSION,
            options=_QUIET + "-f,--file= -e,--export -q,--quote= -i,--interpolate",
            stops=True,
            subcommands=(("run", _runs(_QUIET + "--override --no-override")),),
        ),
        "asdf rbenv pyenv nodenv volta fnm nvm corepack rustup": Program("files", _VERSION),
    }
)
