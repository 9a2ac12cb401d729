"""Invoices: an aggregator, which collects them and files them in batches. Every book of the ledger has batches of its own."""

from datetime import timedelta
from decimal import Decimal

from celery_sagas import Batch, Message, aggregator
from example_project import ledger

#: The most invoices in one batch.
SIZE = 5


class Invoice(Message):
    """An invoice. What a carrier delivers is filed in the carrier's book, what the counter sells in the counter's."""

    number: str
    book: str
    total: Decimal


# A batch is full, or its oldest invoice has waited for long enough; until then the invoices are in the database. This function
# may run twice for one batch, if its worker dies before the end, so the ledger files a number once.
@aggregator(size=SIZE, within=timedelta(seconds=1), group_by="book", name="shop.file_invoices")
def file_invoices(batch: Batch[Invoice]) -> None:
    """File invoices of one book."""
    totals = {}
    for invoice in batch:
        if invoice.total > 0:
            totals[invoice.number] = invoice.total
        else:
            batch.reject(invoice, "there is nothing to pay")  # a dead letter, for somebody to look at; the rest is filed
    ledger.file(ledger.Line(batch.group, len(batch), batch.reason), totals)
