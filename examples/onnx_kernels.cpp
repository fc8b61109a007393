// A file of `saccade export MODEL --to onnx --kernels` in C++, with nothing but ONNX Runtime:
//
//   c++ -std=c++17 onnx_kernels.cpp -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime -o run
//   ./run model.onnx "$(python -c 'import saccade; print(saccade.kernels())')"
//
// prints the first output of a grey image. kernels.so may be copied; it needs neither Python nor torch.
#include <onnxruntime_c_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

const OrtApi* ort = OrtGetApiBase()->GetApi(17);

void check(OrtStatus* status) {
  if (!status) return;
  fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
  exit(1);
}

int main(int count, char** words) {
  if (count != 3) return fprintf(stderr, "usage: %s MODEL.onnx KERNELS.so\n", words[0]), 2;
  OrtEnv* env;
  OrtSessionOptions* options;
  OrtSession* session;
  void* library;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "saccade", &env));
  check(ort->CreateSessionOptions(&options));
  check(ort->RegisterCustomOpsLibrary(options, words[2], &library));
  check(ort->CreateSession(env, words[1], options, &session));

  std::vector<float> image(3 * 96 * 128, 0.5f);  // 1 3 H W, normalised as the file's metadata says
  const int64_t shape[] = {1, 3, 96, 128};
  OrtMemoryInfo* memory;
  OrtValue *input, *output = nullptr;
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  check(ort->CreateTensorWithDataAsOrtValue(memory, image.data(), image.size() * sizeof(float), shape,
                                            4, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input));

  OrtAllocator* allocator;
  char* name;
  check(ort->GetAllocatorWithDefaultOptions(&allocator));
  check(ort->SessionGetOutputName(session, 0, allocator, &name));
  const char *inputs[] = {"image"}, *outputs[] = {name};
  check(ort->Run(session, nullptr, inputs, &input, 1, outputs, 1, &output));

  OrtTensorTypeAndShapeInfo* facts;
  size_t numbers;
  float* values;
  check(ort->GetTensorTypeAndShape(output, &facts));
  check(ort->GetTensorShapeElementCount(facts, &numbers));
  check(ort->GetTensorMutableData(output, reinterpret_cast<void**>(&values)));
  for (size_t i = 0; i < numbers; i++) printf("%.9g\n", values[i]);
}
