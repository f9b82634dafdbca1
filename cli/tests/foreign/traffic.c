// SPDX-License-Identifier: MIT OR Apache-2.0
// A program for any MPI library. Each rank sends every other one known messages, one pair after the other. It counts
// what its library really calls: the program has functions of the names of the calls, which stand before the C
// library's. It knows nothing of onecopy.
//
// traffic FOLDER: each rank writes a file RANK of lines there. `self PID PARENT JOB` says who it is, the
// job as PMIx names it, and `call NAME PEER CALLS BYTES ERRNO` what it called. The peer is a rank, or -1; the errno is
// 0 for calls that worked.
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROWS 256
#define RANKS 64

struct row {
	int call;
	pid_t peer;
	int error;
	long calls;
	long bytes;
};

static struct row rows[ROWS];
static int used, rank = -1, size;
static pid_t pids[RANKS];
static const char *folder;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t counted(int call, pid_t peer, ssize_t got)
{
	int error = got < 0 ? errno : 0, at;

	pthread_mutex_lock(&lock);
	for (at = 0; at < used; at++)
		if (rows[at].call == call && rows[at].peer == peer && rows[at].error == error)
			break;
	if (at == ROWS)
		abort();
	if (at == used)
		rows[used++] = (struct row){ call, peer, error, 0, 0 };
	rows[at].calls++;
	rows[at].bytes += got > 0 ? got : 0;
	pthread_mutex_unlock(&lock);
	errno = error;
	return got;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long here,
			 const struct iovec *remote, unsigned long there, unsigned long flags)
{
	return counted(0, pid, syscall(SYS_process_vm_readv, pid, local, here, remote, there, flags));
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long here,
			  const struct iovec *remote, unsigned long there, unsigned long flags)
{
	return counted(1, pid, syscall(SYS_process_vm_writev, pid, local, here, remote, there, flags));
}

// After everything else: libraries may call until they are unloaded.
__attribute__((destructor)) static void tell(void)
{
	char path[4096], *job;
	FILE *file;

	if (rank < 0)
		return;
	snprintf(path, sizeof(path), "%s/%d", folder, rank);
	file = fopen(path, "w");
	if (!file)
		abort();
	job = getenv("PMIX_NAMESPACE");
	fprintf(file, "self %d %d %s\n", getpid(), getppid(), job ? job : "-");
	for (int at = 0; at < used; at++) {
		int peer = size - 1;

		while (peer >= 0 && pids[peer] != rows[at].peer)
			peer--;
		fprintf(file, "call %s %d %ld %ld %d\n", rows[at].call ? "cma-write" : "cma-read", peer,
			rows[at].calls, rows[at].bytes, rows[at].error);
	}
	if (fclose(file))
		abort();
}

int main(int argc, char **argv)
{
	pid_t own = getpid();

	if (argc != 2 || MPI_Init(&argc, &argv))
		return 2;
	folder = argv[1];
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (size > RANKS)
		return 2;
	MPI_Allgather(&own, sizeof(own), MPI_BYTE, pids, sizeof(own), MPI_BYTE, MPI_COMM_WORLD);
	for (int source = 0; source < size; source++) {
		for (int sink = 0; sink < size; sink++) {
			// The test has the same formulas.
			int messages = 3 + 2 * source + sink;
			int bytes = (1 << 20) + 4096 * (source * size + sink);
			char *buffer;

			if (source == sink || (rank != source && rank != sink))
				continue;
			buffer = malloc(bytes);
			if (!buffer)
				return 2;
			for (int number = 0; number < messages; number++) {
				memset(buffer, rank == source ? number + 1 : 0, bytes);
				if (rank == source)
					MPI_Send(buffer, bytes, MPI_BYTE, sink, 0, MPI_COMM_WORLD);
				else
					MPI_Recv(buffer, bytes, MPI_BYTE, source, 0, MPI_COMM_WORLD,
						 MPI_STATUS_IGNORE);
				for (int at = 0; at < bytes; at++)
					if (buffer[at] != (char)(number + 1))
						return 3;
			}
			free(buffer);
		}
	}
	MPI_Finalize();
	return 0;
}
