"""Programs and commands of Windows that talk over the network, by the names that PowerShell's aliases stand for."""

from __future__ import annotations

from policy.programs.row import Program, rows

ROWS = rows(
    {
        "bitsadmin certutil invoke-webrequest invoke-restmethod start-bitstransfer test-connection test-netconnection "
        "resolve-dnsname send-mailmessage": Program(network=True),
    }
)
