"""Run by alembic: applies the revisions on the given connection, in its open transaction."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    version_table=attributes["version_table"],
    target_metadata=None,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
