"""Every limit of the registry, with its unit, in one place."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """Upper bounds unless the name says otherwise; the unit is the end of each name. `registry serve` sets a few."""

    envelope_bytes: int = 64 * KIB - 1  # what an entry of a C2SP log can hold
    batch_envelopes: int = 128
    batch_bytes: int = 4 * MIB
    lease_request_bytes: int = 8 * KIB
    dropped_bytes: int = 16 * MIB  # of a body that is not wanted, read so that its sender comes to read the answer
    head_bytes: int = 16 * KIB  # request line and headers
    head_seconds: float = 10.0  # from the first byte, or from the connection, to the end of the headers
    body_seconds: float = 20.0  # from the end of the headers to the end of the body
    answer_seconds: float = 60.0  # from the end of the headers to the last byte of the answer
    idle_seconds: int = 15  # of a connection between two requests
    stop_seconds: int = 10  # what requests under way get when the server stops
    connections: int = 512
    connections_per_address: int = 128  # of an IPv4 address or an IPv6 /64; a trusted proxy is exempt
    waiting_envelopes: int = 2048  # read, but not yet verified and stored
    commit_envelopes: int = 256  # stored in one transaction
    addresses: int = 65536  # whose rates are remembered; so many keys as well
    requests_per_second: float = 200.0  # of an address, of any kind
    requests_burst: int = 2000
    envelopes_per_second: float = 100.0  # of an address
    envelopes_burst: int = 4000
    key_envelopes_per_second: float = 50.0  # new ones
    key_envelopes_burst: int = 2000
    envelopes_per_key_and_step: int = 4
    stranger_cost: int = 20  # of an envelope that brings along a key which the policy does not list, in ordinary ones
    keys_per_request: int = 8  # that a submission may bring along
    lease_steps: int = 64  # of one request
    lease_steps_per_key: int = 256  # that have neither run out nor been attested
    lease_seconds: int = 3600  # how long a lease lasts
    clock_seconds: int = 300  # between the time in a lease request and the time here
    coverage_seconds: float = 1.0  # how old the coverage may be that is shown
    log_seconds: float = 0.5  # least time between two checkpoints
    log_entries: int = 1024  # appended to the log at once
    database_connections: int = 8  # readers


REGISTRY_LIMITS = RegistryLimits()
