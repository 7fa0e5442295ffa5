/* SHA-256 of two messages at once, where the processor has instructions for it.
 *
 * One round waits for the one before, so a single message leaves half of the processor's SHA unit
 * idle: two side by side take little more than the time of one. */
#ifndef SN_SHA256_H
#define SN_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SN_SHA256_BYTES = 32 };

/* Whether sn_sha256_two() can run here. */
int sn_sha256_is_there(void);

/* Writes the digest of (first, messages[i]), each of n_bytes behind one first byte. */
void sn_sha256_two(uint8_t first, const uint8_t *const messages[2], size_t n_bytes,
                   uint8_t digests[2][SN_SHA256_BYTES]);

#endif
