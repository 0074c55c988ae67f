"""What a step was trained on: documents, text, and whether its tokens follow from corpus, tokenizer and seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from auditkit.errors import AuditkitError, BadArtifact
from auditkit.formats.data_spec import Source
from auditkit.formats.stream import batch_digest
from auditkit.replay.block_corpus import BlockCorpus
from auditkit.replay.derive import Derived, WholeCorpus
from auditkit.replay.run import Run
from auditkit.replay.selection import select
from auditkit.replay.sources import Sequence
from auditkit.replay.vocabulary import Vocabulary
from auditkit.store.progress import Progress, Silent
from auditkit.verdict import Verdict

FORMAT = "auditkit/data/v1"

_OTHERS = "the numbers of tokens of documents that this step did not see: they say where its windows begin"


@dataclass(frozen=True)
class DataReport:
    """The data of one step. `texts` are the decoded tokens of each sequence (bytes that are not UTF-8 escaped).

    `sources` are the declared sources that the sequences are drawn from, and `not_checked` says what was not.
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
    sources: tuple[Source, ...] = ()
    not_checked: tuple[str, ...] = ("the training step itself (`auditkit verify --step N` does)",)

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values."""
        rows = [
            {
                "number": sequence.number,
                **({"source": sequence.source} if self.sources else {}),
                "epoch": sequence.epoch,
                "window": sequence.window,
                "first_token": sequence.begin,
                "passages": [vars(passage) for passage in sequence.passages],
                "text": text,
            }
            for sequence, text in zip(self.sequences, self.texts, strict=True)
        ]
        sources = [{"name": s.name, "title": s.title, "license": s.license, "weight": s.weight} for s in self.sources]
        return {
            "format": FORMAT,
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "run": self.run,
            "step": self.step,
            "batch": self.batch,
            "corpus": {"title": self.title, "license": self.license},
            **({"sources": sources} if sources else {}),
            "sequences": rows,
            "derived": vars(self.derived) if self.derived else None,
            "not_checked": list(self.not_checked),
            "message": self.message,
            "hint": self.hint,
        }


def inspect(run: Run, step: int, progress: Progress | None = None) -> DataReport:
    """Show the documents and the text of a step and derive its tokens again.

    Raises UsageError for a step outside the run, BadArtifact and Unavailable where not even the text can be shown.
    """
    select(step=step).resolve(run.size)
    segment = run.segment(step)
    data = segment.data
    tokens = run.tokens(step)
    batch = batch_digest(tokens, data.dtype)
    if batch != run.records[step].batch:
        raise BadArtifact(
            f"the tokens of step {step} have batch digest {batch}, its record says {run.records[step].batch}"
        )
    behind = BlockCorpus(run, segment) if data.sources else WholeCorpus(run, segment)
    sequences = behind.sequences(step)
    vocabulary = Vocabulary.parse(run.read(data.tokenizer.path))
    texts = tuple(vocabulary.decode(row.tolist()).decode("utf-8", "backslashreplace") for row in tokens)
    report = DataReport(run.name, step, batch, data.corpus.title, data.corpus.license, Verdict.MATCH, sequences, texts)
    if data.sources:
        used = {sequence.source for sequence in sequences}
        report = replace(
            report,
            sources=tuple(source for source in data.sources if source.name in used),
            not_checked=(*report.not_checked, _OTHERS),
        )
    try:
        return replace(report, derived=behind.derive(step, sequences, progress or Silent()))
    except AuditkitError as error:
        return replace(report, verdict=error.verdict, message=error.message, hint=error.hint)
