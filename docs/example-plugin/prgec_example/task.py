"""A task: `prgec compile --task subject`."""

from __future__ import annotations

from prgec.core.data.task import TemplateTask

SUBJECT = TemplateTask(
    name="subject", fields=("mail",), answer_field="subject", template="{mail}\nSubject:", answer=" {answer}"
)
