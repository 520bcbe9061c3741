# The Pub/Sub server and the command line, with SQLite or PostgreSQL, in a small image without Spark:
#
#   docker build --tag seriatim .
#   docker run --volume seriatim:/data --publish 127.0.0.1:8085:8085 seriatim
#
# Versions are those of the lock. tests/test_dockerfile.py runs these steps.
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE requirements/dev.lock ./
COPY src src
RUN sed -n 's/ *\\$//; /^[a-z0-9-]*==/p' dev.lock > constraints.txt
RUN pip wheel --quiet --constraint constraints.txt --wheel-dir wheels '.[server,postgres,mqtt]'

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/build/wheels,target=/wheels pip install --no-cache-dir --no-index --find-links /wheels 'seriatim[server,postgres,mqtt]'
RUN useradd --create-home --home-dir /data seriatim
USER seriatim
WORKDIR /data
VOLUME /data
EXPOSE 8085
# Inside a container the loopback is the container's own; who may reach the port is said where it is published.
ENTRYPOINT ["seriatim"]
CMD ["serve", "--host", "0.0.0.0", "--insecure"]
