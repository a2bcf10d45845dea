"""Types of the checkpoint entries that a resume reads before restoring anything."""

from ..foreign import Count, Message, Text


class LoaderState(Message):
    """State of `QuestionLoader` in a checkpoint."""

    epoch: Count
    cursor: Count
    served: Count
    questions: Count
    digest: Text
    seed: int


class DataState(Message):
    """State of `QuestionDataModule` in a checkpoint."""

    tokenizer: Text = ""


class ModuleState(Message):
    """Entries of `PolicyModule` in a checkpoint."""

    loaded: Text = ""
    skipped_in_a_row: Count = 0
