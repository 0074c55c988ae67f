"""What a step was trained on: documents, text, and whether its tokens follow from corpus, tokenizer and seed."""

from __future__ import annotations

from dataclasses import dataclass

from auditkit.errors import AuditkitError, BadArtifact
from auditkit.formats.stream import batch_digest
from auditkit.replay.derive import Derived, derive
from auditkit.replay.run import Run
from auditkit.replay.selection import select
from auditkit.replay.sources import Sequence, corpus_index, sequences
from auditkit.replay.vocabulary import Vocabulary
from auditkit.store.progress import Progress, Silent
from auditkit.verdict import Verdict

FORMAT = "auditkit/data/v1"


@dataclass(frozen=True)
class DataReport:
    """The data of one step. `texts` are the decoded tokens of each sequence (bytes that are not UTF-8 escaped).

    `verdict` is MATCH where the batch was derived again and is the published one; `derived` then says from what.
    """

    run: str
    step: int
    batch: str
    title: str
    license: str
    verdict: Verdict
    sequences: tuple[Sequence, ...]
    texts: tuple[str, ...]
    derived: Derived | None = None
    message: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values."""
        rows = [
            {
                "number": source.number,
                "epoch": source.epoch,
                "window": source.window,
                "first_token": source.begin,
                "passages": [vars(passage) for passage in source.passages],
                "text": text,
            }
            for source, text in zip(self.sequences, self.texts, strict=True)
        ]
        return {
            "format": FORMAT,
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "run": self.run,
            "step": self.step,
            "batch": self.batch,
            "corpus": {"title": self.title, "license": self.license},
            "sequences": rows,
            "derived": vars(self.derived) if self.derived else None,
            "message": self.message,
            "hint": self.hint,
        }


def inspect(run: Run, step: int, progress: Progress | None = None) -> DataReport:
    """Show the documents and the text of a step and derive its tokens again.

    Raises UsageError for a step outside the run, BadArtifact and Unavailable where not even the text can be shown.
    """
    select(step=step).resolve(run.size)
    tokens = run.tokens(step)
    batch = batch_digest(tokens, run.manifest.data.dtype)
    if batch != run.records[step].batch:
        raise BadArtifact(
            f"the tokens of step {step} have batch digest {batch}, its record says {run.records[step].batch}"
        )
    index = corpus_index(run)
    sources = sequences(run, index, step)
    vocabulary = Vocabulary.parse(run.read(run.manifest.data.tokenizer.path))
    texts = tuple(vocabulary.decode(row.tolist()).decode("utf-8", "backslashreplace") for row in tokens)
    corpus = run.manifest.data.corpus
    known = (run.name, step, batch, corpus.title, corpus.license)
    try:
        derived = derive(run, index, step, sources, progress or Silent())
    except AuditkitError as error:
        return DataReport(*known, error.verdict, sources, texts, message=error.message, hint=error.hint)
    return DataReport(*known, Verdict.MATCH, sources, texts, derived)
