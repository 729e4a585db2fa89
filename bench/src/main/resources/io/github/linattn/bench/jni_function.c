#include <jni.h>
#include <stdlib.h>

JNIEXPORT jint JNICALL Java_io_github_linattn_bench_JniFunction_abs(JNIEnv *env, jclass type, jint value) {
  (void)env;
  (void)type;
  return abs(value);
}
