"""Run manifests with one wrong value each, in the manner of bad_documents.py."""

from __future__ import annotations

from tests.vectors.bad_documents import DROP, NO_DIGEST, UPPER, A, Case

UNSAFE = "(letters, digits and ._+- only, no dot at either end)"
NO_MIRROR = "is not an http(s) address without user, query and fragment"

RUN: list[Case] = [
    ("unknown key", "key", "x", 'run: unknown key "key"'),
    ("missing key", "log", DROP, 'run: key "log" is missing'),
    ("unknown data key", "data/epochs", 1, 'run.data: unknown key "epochs"'),
    ("unknown corpus key", "data/corpus/url", "x", 'run.data.corpus: unknown key "url"'),
    ("altered recipe", "recipe/model/head_dim", 15, "recipe.model: head_dim 15 is odd, but rope rotates pairs"),
    ("unsafe name", "name", "..", f'run.name: unsafe name ".." {UNSAFE}'),
    ("reserved name", "name", "NUL.txt", 'run.name: name "NUL.txt" is reserved on Windows'),
    ("context length", "data/context_length", 9, "run.data.context_length: 9, but the recipe says 8"),
    ("token dtype", "data/dtype", "U32", "run.data.dtype: U32, but a vocabulary of 512 is stored as U16"),
    ("unknown dtype", "data/dtype", "I64", 'run.data.dtype: "I64" is not "U16" or "U32"'),
    ("end of text", "data/end_of_text", 512, "run.data.end_of_text: 512 is outside a vocabulary of 512"),
    ("stream kind", "data/kind", "derived", 'run.data.kind: "derived" is not "frames"'),
    ("no windows", "data/windows", 0, "run.data.windows: 0 is outside 1 to 1099511627776"),
    ("escape sequence", "data/corpus/title", "\x1b[2J",
     'run.data.corpus.title: "\\u001b[2J" holds an unprintable character'),
    ("log beyond the schedule", "log/size", 11, "run.log.size: 11 is outside 1 to 10 records"),
    ("log root", "log/root", UPPER, f"run.log.root: {NO_DIGEST}"),
    ("empty log", "log/size", 0, "run.log.size: 0 is outside 1 to 10000000 records"),
    ("log of another size", "log/size", 4, "run.artifacts: records.bin has 436 bytes, 4 steps need 576"),
    ("size of the records", "artifacts/3/size", 435, "run.artifacts: records.bin has 435 bytes, 3 steps need 436"),
    ("short stream index", "artifacts/9/size", 159, "run.artifacts: stream.idx is too short for 3 steps"),
    ("not sorted", "artifacts/1/path", "a.zst", "run.artifacts: not sorted by path"),
    ("artifact missing", "artifacts/3/path", "other.bin", 'run.artifacts: "records.bin" is missing'),
    ("corpus digest differs", "artifacts/0/digest", A,
     'run.artifacts: digest of "corpus.json" differs from the one in run.data'),
    ("parent folder", "artifacts/0/path", "../corpus.json", f'run.artifacts[0].path: unsafe name ".." {UNSAFE}'),
    ("absolute", "artifacts/0/path", "/etc/passwd", 'run.artifacts[0].path: path "/etc/passwd" is absolute'),
    ("drive letter", "artifacts/0/path", "c:corpus.json", 'run.artifacts[0].path: path "c:corpus.json" is absolute'),
    ("backslash", "artifacts/0/path", "states\\x",
     """run.artifacts[0].path: path "states\\\\x" holds a backslash (paths are joined by '/')"""),
    ("equal but for case", "artifacts/1/path", "corpus.JSON", "run.artifacts: not sorted by path"),
    ("manifest in itself", "artifacts/3/path", "run.json",
     'run.artifacts: paths "run.json" and "run.json" are one file where case is ignored'),
    ("file and folder", "artifacts/4/path", "states/00000000",
     'run.artifacts: "states/00000000" is both a file and the folder of "states/00000000/state.json"'),
    ("no state of step 0", "states/0/step", 1, "run.states: the first state is not that of step 0"),
    ("repeated state", "states/1/step", 0, "run.states: step 0 is repeated or out of order"),
    ("state beyond the log", "states/1/step", 4, "run.states: step 4 is beyond a log of 3 records"),
    ("state path", "states/1/path", "states/3", 'run.states: path "states/3" of step 3 is not states/00000003'),
    ("mirror with a user", "mirrors/0", "https://u:p@example.org/",
     f'run.mirrors: "https://u:p@example.org/" {NO_MIRROR}'),
    ("mirror with a query", "mirrors/0", "https://example.org/?a=b",
     f'run.mirrors: "https://example.org/?a=b" {NO_MIRROR}'),
    ("mirror of a file", "mirrors/0", "file:///etc", f'run.mirrors: "file:///etc" {NO_MIRROR}'),
    ("mirror is no text", "mirrors/0", 5, f"run.mirrors: int {NO_MIRROR}"),
    ("mirror twice", "mirrors/0", "http://127.0.0.1:8000", 'run.mirrors: "http://127.0.0.1:8000" is listed twice'),
]  # fmt: skip
