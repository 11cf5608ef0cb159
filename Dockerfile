# Millrace in a container: three images from one file.
#   docker build --target millrace     -t millrace .        the server (the last stage, so also the default)
#   docker build --target millrace-gpu -t millrace-gpu .    the same with the SYCL backend, for Intel GPUs: 1 GB
#   docker build --target k6           -t millrace-k6 .     the load tests
# One image serves every x86-64 machine: kernels for the processor are chosen when the server starts.

FROM golang:1.26-trixie AS go

# Rust's image has g++, git and make already, and a cargo new enough for the tokenizer.
FROM rust:1.95-trixie AS tools
COPY --from=go /usr/local/go /usr/local/go
ENV PATH=/usr/local/go/bin:$PATH
RUN apt-get update \
 && apt-get install -y --no-install-recommends cmake ninja-build \
 && rm -rf /var/lib/apt/lists/*

FROM tools AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
ARG COMMIT=unknown
RUN make build notices VERSION=${VERSION} COMMIT=${COMMIT}

FROM go AS build-k6
WORKDIR /src
COPY benchmarks/k6/go.mod benchmarks/k6/go.sum ./
RUN go mod download
COPY benchmarks/k6 ./
RUN CGO_ENABLED=0 go build -buildvcs=false -o /k6 .

FROM debian:trixie-slim AS k6
COPY --from=build-k6 /k6 /usr/local/bin/k6
COPY benchmarks/k6/*.js /scripts/
USER 10001:10001
ENTRYPOINT ["k6"]
CMD ["run", "--no-usage-report", "/scripts/smoke.js"]

# The wheels have a copy of a library for each of its names, and pip itself.
FROM build AS build-sycl
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN make sycl \
 && mkdir /licenses \
 && cp -r build/sycl/licensing build/sycl/share/doc /licenses/ \
 && cd build/sycl/lib \
 && for d in python3*/site-packages/*.dist-info; do cp -r "$d" /licenses/; done \
 && rm -r python3* \
 && for f in *.so.*; do if cmp -s "$f" "${f%%.so*}.so"; then ln -sf "${f%%.so*}.so" "$f"; fi; done

FROM debian:trixie-slim AS runtime
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates curl libstdc++6 \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 10001 -g 10001 /var/lib/millrace
COPY --from=build /src/bin/millrace /usr/local/bin/millrace
COPY --from=build /src/build/THIRD_PARTY_NOTICES /usr/share/doc/millrace/THIRD_PARTY_NOTICES
COPY --from=build /src/models/tiny-chat /models/tiny-chat
# The user has no home. `millrace pull` keeps models in the volume, in /var/lib/millrace/millrace/models, and serve finds them there by name.
ENV XDG_DATA_HOME=/var/lib/millrace XDG_CACHE_HOME=/var/lib/millrace/cache
USER 10001:10001
VOLUME /var/lib/millrace
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=2m --retries=3 \
  CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8080/health/ready"]
ENTRYPOINT ["millrace"]
# Everybody who reaches the port may ask: publish it on the loopback interface, or give --api-keys a file.
CMD ["serve", "--model", "/models/tiny-chat", "--listen", "0.0.0.0:8080", "--api-keys", "none", "--data-dir", "/var/lib/millrace"]

# Ubuntu, because Debian 13 has no package of the driver.
FROM ubuntu:26.04 AS millrace-gpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates curl libstdc++6 libze1 libze-intel-gpu1 intel-opencl-icd \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 10001 -g 10001 /var/lib/millrace
COPY --from=runtime /usr/local/bin/millrace /usr/local/bin/millrace
COPY --from=runtime /usr/share/doc/millrace /usr/share/doc/millrace
COPY --from=runtime /models /models
COPY --from=build-sycl /src/build/lib/libmillrace_sycl.so /usr/local/lib/libmillrace_sycl.so
COPY --from=build-sycl /src/build/sycl/lib /usr/local/sycl/lib
COPY --from=build-sycl /licenses /usr/share/doc/millrace/sycl
ENV XDG_DATA_HOME=/var/lib/millrace XDG_CACHE_HOME=/var/lib/millrace/cache MILLRACE_BACKEND=sycl
USER 10001:10001
VOLUME /var/lib/millrace
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=2m --retries=3 \
  CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8080/health/ready"]
ENTRYPOINT ["millrace"]
CMD ["serve", "--model", "/models/tiny-chat", "--listen", "0.0.0.0:8080", "--api-keys", "none", "--data-dir", "/var/lib/millrace"]

FROM runtime AS millrace
