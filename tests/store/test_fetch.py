"""Whole files over HTTP: resume, servers that forget, lie, die or code, leftovers, mirrors (cases 21 to 23, 28)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import Busy, Dying, flip, honest, serve
from tests.store.tools import Story, blob, cached, leave_part, named, parts

DATA = blob(200_000)
SIZE, DIGEST = named(DATA)
FILES = {"run.json": b"{}", "x.bin": DATA, "empty.bin": b""}


def test_a_file_comes_whole_and_only_once(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        store = shop.store(server.url)
        path = store.file("x.bin", SIZE, DIGEST)
        assert path.read_bytes() == DATA
        assert path == shop.cache / "blake3" / DIGEST[:2] / DIGEST
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST) == path
    assert [a.path for a in server.asked] == ["x.bin"]
    assert server.asked[0].headers["accept-encoding"] == "identity"
    assert server.asked[0].range == ""
    assert server.heads == 0  # case 28: HEAD is not needed
    assert parts(shop.cache) == []


def test_an_empty_file_needs_no_request(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        assert shop.store(server.url).file("empty.bin", *named(b"")).read_bytes() == b""
    assert server.asked == []


@pytest.mark.parametrize("cuts", [(29,), (100_000,), (29, 100_000, 0), (199_999,)])
def test_a_cut_line_is_resumed(shop: Shop, cuts: tuple[int, ...]) -> None:
    with serve(Dying(cuts), FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert server.asked[1].range == f"bytes={cuts[0]}-{SIZE - 1}"
    assert sum(a.sent for a in server.asked) == SIZE  # no byte twice


@pytest.mark.parametrize("cut", [29, SIZE // 2])
def test_case_21_a_server_that_forgets_ranges_starts_again_from_0(shop: Shop, cut: int) -> None:
    with serve(Dying((cut, cut, cut), ranges=False), FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert [a.range for a in server.asked] == ["", *[f"bytes={cut}-{SIZE - 1}"] * 3]
    assert cached(shop.cache) == [DIGEST] and parts(shop.cache) == []


@pytest.mark.parametrize("round", range(3))
def test_case_21_a_leftover_before_a_forgetful_server(shop: Shop, round: int) -> None:
    leave_part(shop.cache, DIGEST, DATA[: 29 + round])
    with serve(servers.forgetful, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("leftover", "requests"),
    [(DATA, 0), (flip(DATA), 1), (DATA + b"7 bytes", 1), (DATA[:-1], 1), (b"", 1), (flip(DATA[:1000]), 2)],
    ids=["right", "wrong", "size+7", "one short", "empty", "wrong beginning"],
)
@pytest.mark.parametrize("behaviour", [honest, servers.forgetful], ids=["ranges", "no ranges"])
def test_case_22_leftovers_of_any_size(
    shop: Shop, behaviour: servers.Behaviour, leftover: bytes, requests: int
) -> None:
    leave_part(shop.cache, DIGEST, leftover)
    with serve(behaviour, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
        # A server that forgets ranges sends everything at the first request, so a wrong beginning costs no second one.
        assert len(server.asked) == (min(requests, 1) if behaviour is servers.forgetful else requests)
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
        assert len(server.asked) <= requests


def test_case_22_a_server_that_refuses_every_range(shop: Shop) -> None:
    def refuse(handler: servers.Handler, data: bytes | None) -> None:
        assert data is not None
        if handler.asked.range:
            return handler.whole(b"", 416, Content_Range=f"bytes */{len(data)}")
        return honest(handler, data)

    leave_part(shop.cache, DIGEST, DATA[:1000])
    with serve(refuse, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert [bool(a.range) for a in server.asked] == [True, False]
    assert "refused the range" in shop.story.text


@pytest.mark.parametrize(
    "behaviour",
    [
        servers.ranged(lambda first, last, total: f"bytes {first - 1}-{last}/{total}", shift=-1),
        servers.ranged(lambda first, last, total: f"bytes {first}-{last + 9}/{total}"),
        servers.ranged(lambda first, last, total: "bytes"),
        servers.ranged(lambda first, last, total: f"lines {first}-{last}/{total}"),
        servers.ranged(lambda first, last, total: f"bytes {last}-{first}/{total}"),
    ],
    ids=["another start", "beyond the end", "nothing", "another unit", "backwards"],
)
def test_a_content_range_that_is_not_the_one_asked_for_means_a_start_from_0(
    shop: Shop, behaviour: servers.Behaviour
) -> None:
    leave_part(shop.cache, DIGEST, DATA[:1000])
    with serve(behaviour, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert [bool(a.range) for a in server.asked] == [True, False]


def test_a_right_content_range_with_moved_bytes_is_caught_by_the_digest(shop: Shop) -> None:
    leave_part(shop.cache, DIGEST, DATA[:1000])
    moved = servers.ranged(lambda first, last, total: f"bytes {first}-{last}/{total}", shift=-1)
    with serve(moved, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert "the resumed bytes are wrong; starting again from 0" in shop.story.text


def test_an_unknown_total_in_content_range_is_no_fault(shop: Shop) -> None:
    leave_part(shop.cache, DIGEST, DATA[:1000])
    with serve(servers.ranged(lambda first, last, total: f"bytes {first}-{last}/*"), FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert len(server.asked) == 1


def fails(shop: Shop, behaviour: servers.Behaviour, kind: type[Exception]) -> tuple[str, str]:
    """The message and hint with which a fetch from such a server ends; nothing may be under the final name."""
    with serve(behaviour, FILES) as server, pytest.raises(kind) as error:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert cached(shop.cache) == []
    assert isinstance(error.value, BadArtifact | Unavailable)
    return error.value.message.replace(server.url, "URL/"), error.value.hint


def test_wrong_bytes_are_a_bad_artifact_that_names_both_digests(shop: Shop) -> None:
    message, _ = fails(shop, servers.instead(flip), BadArtifact)
    assert message == f"x.bin: URL/x.bin: digest {named(flip(DATA))[1]}, but {DIGEST} was declared"


@pytest.mark.parametrize(
    ("behaviour", "found"),
    [
        (servers.instead(lambda d: d[:-1]), "199,999 bytes, but the manifest declares 200,000"),
        (servers.instead(lambda d: d + d), "400,000 bytes, but the manifest declares 200,000"),
        (servers.chunked(lambda d: d + b"!"), "longer than the 200,000 bytes that the manifest declares"),
    ],
    ids=["truncated", "doubled", "longer, no length"],
)
def test_another_length_is_a_bad_artifact(shop: Shop, behaviour: servers.Behaviour, found: str) -> None:
    message, _ = fails(shop, behaviour, BadArtifact)
    assert message == f"x.bin: URL/x.bin: {found}"


def test_a_total_that_is_not_the_declared_one_is_a_bad_artifact(shop: Shop) -> None:
    leave_part(shop.cache, DIGEST, DATA[:1000])
    message, _ = fails(shop, servers.instead(lambda d: d + d), BadArtifact)
    assert message == "x.bin: URL/x.bin: 400,000 bytes, but the manifest declares 200,000"


def test_never_more_is_written_than_was_declared(shop: Shop, story: Story) -> None:
    seen: list[int] = []
    real = story.advance
    story.advance = lambda n: (seen.append(sum(p.stat().st_size for p in parts(shop.cache))), real(n))[1]  # type: ignore[method-assign]
    endless = servers.chunked(lambda d: d * 20)
    with serve(endless, FILES) as server, pytest.raises(BadArtifact):
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert seen and max(seen) <= SIZE


@pytest.mark.parametrize("behaviour", [servers.chunked(bytes), servers.until_close], ids=["chunked", "until close"])
def test_a_body_without_length_is_no_fault(shop: Shop, behaviour: servers.Behaviour) -> None:
    with serve(behaviour, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_a_short_body_without_length_is_resumed(shop: Shop) -> None:
    answers = iter([servers.instead(lambda d: d[:77], servers.until_close), honest])
    with serve(lambda handler, data: next(answers)(handler, data), FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert server.asked[1].range == f"bytes=77-{SIZE - 1}"


def test_bodies_that_are_always_short_end(shop: Shop) -> None:
    def nothing(handler: servers.Handler, data: bytes | None) -> None:
        handler.head(200 if not handler.asked.range else 206, {"Connection": "close"})
        handler.cut()

    message, _ = fails(shop, nothing, Unavailable)
    assert message == "x.bin: URL/x.bin: the answer ended at byte 0 of 200,000"
    assert len(shop.clock.waits) == shop.limits.tries - 1


def test_case_23_a_coded_body_is_refused_with_the_reason(shop: Shop) -> None:
    message, hint = fails(shop, servers.coded, Unavailable)
    assert "applied Content-Encoding gzip although identity was asked for" in message
    assert "as they are stored" in hint


@pytest.mark.parametrize("coding", ["zstd", "gzip", "identity"])
def test_case_23_a_label_alone_does_no_harm(shop: Shop, coding: str) -> None:
    with serve(servers.labelled(coding), FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_case_28_a_web_page_is_a_bad_artifact_with_a_hint(shop: Shop) -> None:
    _, hint = fails(shop, servers.web_page, BadArtifact)
    assert hint == "the server sent a web page (a login or error page?) in place of the file"


def test_case_28_a_web_page_of_the_right_length(shop: Shop) -> None:
    page = servers.instead(lambda d: b"<html>".ljust(len(d)))

    def html(handler: servers.Handler, data: bytes | None) -> None:
        page(handler, data) if data is None else handler.whole(b"<html>".ljust(len(data)), Content_Type="text/html")

    message, hint = fails(shop, html, BadArtifact)
    assert "digest" in message and "web page" in hint


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 501, 505, 304, 204])
def test_statuses_that_do_not_pass_are_asked_once(shop: Shop, status: int) -> None:
    behaviour = Busy([status] * 99)
    message, hint = fails(shop, behaviour, Unavailable)
    assert f"the server answered {status}" in message
    assert behaviour.answers == 1 and shop.clock.waits == []
    assert (hint == "the place wants a login") is (status in (401, 403))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 520])
def test_statuses_that_pass_are_asked_again(shop: Shop, status: int) -> None:
    with serve(Busy([status] * 5), FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert shop.clock.waits == [0.5, 1, 2, 4, 8]
    assert f"the server answered {status}" in shop.story.notes[0]
    assert shop.story.notes[0].endswith("trying again in 0.5 s")


def test_tries_end(shop: Shop) -> None:
    behaviour = Busy([503] * 99)
    fails(shop, behaviour, Unavailable)
    assert behaviour.answers == shop.limits.tries
    assert max(shop.clock.waits) == shop.limits.backoff_seconds


def test_a_server_that_always_dies_ends_but_what_came_is_kept(shop: Shop) -> None:
    message, _ = fails(shop, Dying([10] * 99), Unavailable)
    assert "of 200,000" in message
    (left,) = parts(shop.cache)
    assert left.read_bytes() == DATA[: 10 * shop.limits.tries]
    with serve(honest, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert server.asked[0].range == f"bytes={10 * shop.limits.tries}-{SIZE - 1}"


def test_a_slow_dying_server_that_gains_each_time_is_not_given_up(shop: Shop) -> None:
    with serve(Dying([5000] * 30), FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert len(server.asked) == 31 > shop.limits.tries


def test_mirrors_are_tried_in_order_and_wrong_ones_noted(shop: Shop) -> None:
    with (
        serve(servers.instead(flip), FILES) as lying,
        serve(Busy([404] * 9), FILES) as missing,
        serve(honest, FILES) as good,
        serve(honest, FILES) as spare,
    ):
        store = shop.store(lying.url, missing.url, good.url, spare.url)
        assert store.file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert [len(s.asked) for s in (lying, missing, good, spare)] == [1, 1, 1, 0]
    assert shop.story.notes[0].startswith(f"{lying.url}x.bin: digest ")
    assert shop.story.notes[1] == f"{missing.url}x.bin: the server answered 404 not found; trying the next place"


def test_a_mirror_goes_on_where_another_died(shop: Shop) -> None:
    with serve(Dying([100_000, *[0] * 99]), FILES) as dying, serve(honest, FILES) as good:
        assert shop.store(dying.url, good.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert good.asked[0].range == f"bytes=100000-{SIZE - 1}"


def test_a_good_mirror_is_not_blamed_for_the_bytes_of_a_lying_one(shop: Shop) -> None:
    lying = Dying([100_000, *[0] * 99])
    with (
        serve(servers.instead(lambda d: flip(d, 5), lying), FILES) as bad,
        serve(honest, FILES) as good,
    ):
        assert shop.store(bad.url, good.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert [bool(a.range) for a in good.asked] == [True, False]


def test_a_server_that_lies_and_dies_each_time_ends(shop: Shop) -> None:
    lying = servers.instead(flip, lambda handler, data: Dying([100_000])(handler, data))
    message, _ = fails(shop, lying, BadArtifact)
    assert f"but {DIGEST} was declared" in message


def test_wrong_everywhere_is_a_bad_artifact_and_wrong_here_and_absent_there_is_not(shop: Shop) -> None:
    with serve(servers.instead(flip), FILES) as one, serve(servers.instead(lambda d: d[1:]), FILES) as two:
        with pytest.raises(BadArtifact) as wrong:
            shop.store(one.url, two.url).file("x.bin", SIZE, DIGEST)
        with serve(Busy([404] * 9), FILES) as absent, pytest.raises(Unavailable) as unknown:
            shop.store(one.url, absent.url).file("x.bin", SIZE, DIGEST)
    for url in (one.url, two.url):
        assert url in wrong.value.message
    for url in (one.url, absent.url):
        assert url in unknown.value.message


@pytest.mark.optional("Windows does not remove open files, so it cannot happen there")
@pytest.mark.skipif(os.name == "nt", reason="Windows does not remove open files")
def test_a_part_that_is_removed_meanwhile_is_fetched_again(shop: Shop) -> None:
    removed: list[Path] = []

    def removing(handler: servers.Handler, data: bytes | None) -> None:
        if not removed:
            removed.extend(parts(shop.cache))
            removed[0].unlink()
        honest(handler, data)

    with serve(removing, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert len(server.asked) == 2
    assert "someone removed the partial file" in shop.story.text


def test_a_server_that_does_not_speak_http_ends(shop: Shop) -> None:
    fails(shop, servers.garbage, Unavailable)
    assert len(shop.clock.waits) == shop.limits.silent_tries - 1


def test_case_27_a_head_that_never_ends_is_cut(shop: Shop) -> None:
    quick = dataclasses.replace(shop.limits, answer_seconds=0.3)
    with serve(servers.slow_head(0.05), FILES) as server, pytest.raises(Unavailable) as error:
        shop.store(server.url, limits=quick).file("x.bin", SIZE, DIGEST)
    assert "no complete answer within 0.3 s" in error.value.message
    assert len(shop.clock.waits) == shop.limits.silent_tries - 1
