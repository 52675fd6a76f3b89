"""What alembic runs: the revisions, on the connection that it is given, in the transaction that is open."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
