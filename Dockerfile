# dspreg for a CPU, with the versions of constraints.txt:
#   docker build -t dspreg .
#   docker run --rm -v "$PWD:/project" --user "$(id -u):$(id -g)" dspreg train --dataset folder:photos --target site-4 --out runs/site-4
# For GPUs: docker build --build-arg TORCH_INDEX= -t dspreg-gpu . and docker run --gpus all --shm-size 8g
FROM python:3.12-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN PIP_CONSTRAINT=constraints.txt pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /tmp/
COPY --from=wheel /dist /tmp/dist
RUN pip install --no-cache-dir -c /tmp/constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} /tmp/dist/*.whl \
    && rm -rf /tmp/dist /tmp/constraints.txt
# caches, for whichever user the container runs as
ENV HOME=/home/dspreg PYTHONUNBUFFERED=1
RUN install -d -m 1777 /home/dspreg /project
WORKDIR /project
ENTRYPOINT ["dspreg"]
CMD ["--help"]
