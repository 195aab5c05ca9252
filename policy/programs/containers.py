"""Containers, clusters and services of the machine."""

from __future__ import annotations

from policy.programs.row import Program, rows

_ELSEWHERE = "programs in a container or on another machine"

ROWS = rows(
    {
        "docker podman": Program("files", _ELSEWHERE, online="pull push login search"),
        "kubectl helm": Program("files", _ELSEWHERE, network=True),
        "nerdctl docker-compose podman-compose vagrant multipass lxc ansible ansible-playbook terraform tofu "
        "service systemctl": Program("files", _ELSEWHERE),
    }
)
