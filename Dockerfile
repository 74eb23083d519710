# docker build -t aliquot .
# Host backends only: threads and Open MPI. For GPUs, base both stages on an image with a CUDA toolkit and NCCL.
FROM debian:12 AS build
WORKDIR /src
# Packages are installed first because they change less often than the sources.
COPY scripts/setup.sh scripts/lib.sh scripts/
RUN scripts/setup.sh
COPY . .
RUN cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DALIQUOT_TESTS=OFF -DALIQUOT_BENCHES=OFF \
    && cmake --build build && cmake --install build --prefix /opt/aliquot && cp -r scripts /opt/aliquot/scripts

FROM debian:12
# mpirun starts processes on workers through ssh.
RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin libhdf5-103-1 libboost-program-options1.74.0 \
      libfmt9 zlib1g openssh-server openssh-client \
    && rm -rf /var/lib/apt/lists/* && mkdir -p /run/sshd \
    && sed -i 's/#\?StrictModes .*/StrictModes no/' /etc/ssh/sshd_config && echo "    StrictHostKeyChecking no" >>/etc/ssh/ssh_config
COPY --from=build /opt/aliquot /opt/aliquot
# /usr/local/bin is in the PATH of sessions started through ssh.
RUN ln -s /opt/aliquot/bin/aliquot /usr/local/bin/aliquot
CMD ["aliquot", "doctor"]
