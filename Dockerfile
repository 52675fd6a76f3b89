# The gateway with llama.cpp inside; weights are fetched at the first start and live in the volume.
#
#   docker build -t ctxgate .
#   docker run -p 127.0.0.1:4000:4000 -e CTXGATE_KEY=choose-one -v ctxgate-models:/app/_models ctxgate
FROM python:3.13-slim

ENV PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

RUN useradd --create-home --uid 10001 ctxgate && install -d -o 10001 -g 10001 /app
WORKDIR /app
USER 10001:10001

COPY --chown=10001:10001 . .
RUN scripts/install serve

EXPOSE 4000
HEALTHCHECK --interval=30s --timeout=3s --start-period=120s --retries=3 \
    CMD [".venv/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:4000/health', timeout=2)"]

# In a container, loopback is the container's own: listen on all its addresses, which CTXGATE_KEY allows.
ENTRYPOINT ["scripts/serve", "--host", "0.0.0.0"]
