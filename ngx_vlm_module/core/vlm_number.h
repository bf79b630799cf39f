
/* Numbers as forms write them: decimal digits, nothing before or behind. */

#ifndef VLM_NUMBER_H
#define VLM_NUMBER_H


#include <stddef.h>


/*
 * Whether the text is one whole number, an integer if asked for: strtof() and
 * the like are more liberal (white space, hexadecimal, infinity, trailing
 * bytes).
 */
int vlm_number_is(const char *p, size_t len, int integer);

/*
 * Both convert a text that ends with a zero, and return -1 if it is not a
 * number from low to high.
 */
int vlm_number_float(const char *p, size_t len, double low, double high,
    float *to);
int vlm_number_integer(const char *p, size_t len, long long low,
    long long high, long long *to);


#endif /* VLM_NUMBER_H */
