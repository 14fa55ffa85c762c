# The images of the project. Targets: `operator` and `runtime`, see docs/images.md.
#
# Dependencies come from the locks with hashes, in stages that only a changed lock rebuilds. In the final images they
# are a layer of their own, below the layer of our code, so that a change of code moves few bytes.
ARG BASE_IMAGE=python:3.12-slim


# --- tools: pip and the build backend, which no image keeps
FROM ${BASE_IMAGE} AS tools
# pip reads these from its environment. They belong to this stage and end in no image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_DEFAULT_TIMEOUT
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.lock requirements/
RUN python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --quiet --require-hashes -r requirements/build.lock \
 && python3 -m venv --without-pip /opt/venv


# --- launcher: one pure-Python file that runs in any image with Python >= 3.9
FROM tools AS launcher
COPY runtime runtime
RUN mkdir /out && PYTHONPATH=runtime python3 -m tpu_runtime.bundle /out/tpu-launch.pyz


# --- operator
FROM tools AS operator-dependencies
COPY requirements/operator.lock requirements/
# Most of the kubernetes client is models that nobody imports: it gets bytecode only for what the import below loads.
RUN /opt/tools/bin/pip --python /opt/venv/bin/python install --quiet --no-compile --require-hashes -r requirements/operator.lock \
 && /opt/venv/bin/python -m compileall -q -x 'site-packages/kubernetes/' /opt/venv \
 && /opt/venv/bin/python -c 'import kubernetes.aio'

FROM operator-dependencies AS operator-code
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY runtime runtime
RUN /opt/tools/bin/python -m hatchling build -t wheel -d /tmp/wheel \
 && /opt/tools/bin/pip --python /opt/venv/bin/python install --quiet --no-compile --no-deps --no-index --prefix /out/opt/venv /tmp/wheel/*.whl \
 && /opt/venv/bin/python -m compileall -q -s /out /out

FROM ${BASE_IMAGE} AS operator
ARG VERSION=dev
LABEL org.opencontainers.image.title="tpu-operator" \
      org.opencontainers.image.description="Kubernetes operator for TPU workloads" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# USER: kopf asks for the user's name, and numeric users have none.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    USER=tpu-operator
COPY --from=operator-dependencies /opt/venv /opt/venv
COPY --from=operator-code /out/ /
# The operator's image is also the init container that hands the launcher to images that are not ours.
COPY --from=launcher /out/tpu-launch.pyz /usr/local/share/tpu-operator/tpu-launch.pyz
RUN tpu-operator --help > /dev/null
USER 65532:65532
ENTRYPOINT ["tpu-operator"]


# --- runtime
FROM tools AS runtime-dependencies
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends binutils > /dev/null
# The whole runtime by default; requirements/runtime.lock is JAX and Ray alone, a fraction of the size.
ARG RUNTIME_LOCK=requirements/runtime-torchtpu.lock
COPY requirements/runtime*.lock requirements/
RUN /opt/tools/bin/pip --python /opt/venv/bin/python install --quiet --no-compile --require-hashes -r "${RUNTIME_LOCK}" \
 && cd /opt/venv/lib/python3*/site-packages \
 && strip --strip-unneeded jaxlib/*.so \
 && find numpy scipy -type d -name tests -prune -exec rm -r {} + \
 && /opt/venv/bin/python -m compileall -q -x '/(scipy|torch|rllib)/' /opt/venv

FROM ${BASE_IMAGE} AS runtime
# TorchTPU preloads tcmalloc where it finds it.
ARG RUNTIME_PACKAGES=libgoogle-perftools4
RUN if [ -n "${RUNTIME_PACKAGES}" ]; then \
      apt-get update -qq && apt-get install -y -qq --no-install-recommends ${RUNTIME_PACKAGES} \
      && rm -rf /var/lib/apt/lists/*; \
    fi
ARG VERSION=dev
LABEL org.opencontainers.image.title="tpu-runtime" \
      org.opencontainers.image.description="What the pods of a TPUJob run: TorchTPU, Ray, JAX and tpu-launch" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1
COPY --from=runtime-dependencies /opt/venv /opt/venv
# The same file that images which are not ours get from the operator's image.
COPY --from=launcher /out/tpu-launch.pyz /usr/local/bin/tpu-launch
# What does not fit together shows in the imports: torch aborts, for one, where there is torch_tpu and no libtpu.
RUN printf '#!/bin/sh\nexec python3 /usr/local/bin/tpu-launch doctor "$@"\n' > /usr/local/bin/tpu-doctor \
 && chmod 755 /usr/local/bin/tpu-doctor \
 && python3 /usr/local/bin/tpu-launch --help > /dev/null \
 && tpu-doctor --help > /dev/null \
 && for package in jax torch ray; do \
      ! ls -d /opt/venv/lib/python3*/site-packages/$package > /dev/null 2>&1 || python3 -c "import $package" || exit 1; \
    done
CMD ["python3"]
