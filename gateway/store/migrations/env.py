"""Run by alembic: applies the revisions on the given connection, in its open transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
