// The few functions of ONNX Runtime's C interface that examples/onnx_kernels.cpp calls, each at its
// place in the table, for machines without its header. Programs include the real one.
#pragma once
#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtValue;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtTensorTypeAndShapeInfo;
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };
enum ONNXTensorElementDataType { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 };

struct OrtApi {
  void* to_2[2];
  const char* (*GetErrorMessage)(const OrtStatus*);
  OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char*, OrtEnv**);
  void* to_7[3];
  OrtStatus* (*CreateSession)(const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**);
  void* to_9[1];
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*,
                    size_t, const char* const*, size_t, OrtValue**);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
  void* to_29[18];
  OrtStatus* (*RegisterCustomOpsLibrary)(OrtSessionOptions*, const char*, void**);
  void* to_37[7];
  OrtStatus* (*SessionGetOutputName)(const OrtSession*, size_t, OrtAllocator*, char**);
  void* to_49[11];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void*, size_t, const int64_t*,
                                               size_t, ONNXTensorElementDataType, OrtValue**);
  void* to_51[1];
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void**);
  void* to_64[12];
  OrtStatus* (*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  void* to_69[3];
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);
  void* to_78[8];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator**);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
extern "C" const OrtApiBase* OrtGetApiBase();
